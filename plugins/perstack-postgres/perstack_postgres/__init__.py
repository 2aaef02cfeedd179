"""Storage in a PostgreSQL database."""
