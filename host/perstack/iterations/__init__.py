"""Series of iterations of one Expert: events, state, and the next step. Pure."""
