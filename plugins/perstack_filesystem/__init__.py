"""The default storage: a folder a Job, a JSON Lines log a Run."""
