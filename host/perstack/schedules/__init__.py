"""Schedules: events, state, and the next step. Pure."""
