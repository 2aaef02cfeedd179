"""Temporal, a server of workflows, as the dispatcher that says which worker drives a Job."""
