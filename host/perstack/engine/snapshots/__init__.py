"""Snapshots of a workspace: taken, kept as blobs of a Job, and read again."""
