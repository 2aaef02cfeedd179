"""Dispatcher on Temporal, a workflow server."""
