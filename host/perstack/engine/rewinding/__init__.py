"""Making the files of a workspace what they were: planned, staged, put in place, recorded; or nothing of it."""
