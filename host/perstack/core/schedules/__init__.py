"""Schedules: definition, facts, state, and what is decided from them. Pure."""
