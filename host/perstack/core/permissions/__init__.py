"""Permission decisions: how rules apply to the calls of a Run."""
