"""Storage in the file system: one directory per Job, one JSON Lines log per Run (the default storage)."""
