"""procrastinate, an engine of queues in PostgreSQL, as the dispatcher that says which worker drives a Job."""
