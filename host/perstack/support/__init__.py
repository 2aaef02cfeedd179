"""Helpers for authors of plugins: for storages, HTTP providers, prices and sandboxes."""
