"""The linear mode: output that only appends lines, for screen readers and terminals without a cursor."""
