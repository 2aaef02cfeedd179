"""perstack."""
