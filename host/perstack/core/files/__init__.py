"""Snapshots of a workspace: trees of folders named by digests, their diffs, and rules of what is ignored. Pure."""
