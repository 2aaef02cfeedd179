"""The linear mode: lines that come one below the other and stay, for screen readers and terminals without a cursor."""
