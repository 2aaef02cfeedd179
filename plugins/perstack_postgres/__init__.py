"""A storage in a PostgreSQL database."""
