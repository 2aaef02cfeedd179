"""Provider `recorded`, which plays a Job recorded by `perstack record` without a key, a server or a person."""
