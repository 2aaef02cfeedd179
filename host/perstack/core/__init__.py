"""The pure core: facts, the state they fold into, and decisions. It does no I/O and knows no clock."""
