"""Experts as agents of editors that speak the Agent Client Protocol: a session is a Job, a prompt turn a Run."""
