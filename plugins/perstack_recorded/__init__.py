"""Provider `recorded`: plays a Job that `perstack record` has kept, without a key, a server or a person."""
