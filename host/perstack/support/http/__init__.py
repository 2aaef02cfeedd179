"""Shared parts of providers that use HTTP: connections, errors, settings and message encoding."""
