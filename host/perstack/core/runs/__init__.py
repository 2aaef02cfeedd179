"""The event-sourced core of a Run: events, the state folded from them, and the next command; pure functions."""
