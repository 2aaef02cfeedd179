"""Tasks that agents pause and resume: events, state, and operations. Pure."""
