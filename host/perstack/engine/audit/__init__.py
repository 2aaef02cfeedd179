"""Verify, replay, redact, measure and copy stored logs."""
