"""Schedules looked after: what is due of them is recorded, and their Jobs are started."""
