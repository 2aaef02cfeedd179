"""Decisions of workers about queued orders, and the rate limiter of endpoints; pure functions."""
