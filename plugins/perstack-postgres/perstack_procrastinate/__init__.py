"""Dispatcher on procrastinate, a job queue in PostgreSQL."""
