"""Logs of Jobs, tasks and series, their summaries and leases, and the events that listeners see."""
