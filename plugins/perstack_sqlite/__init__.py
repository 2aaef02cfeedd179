"""A storage in one SQLite file."""
