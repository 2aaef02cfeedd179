"""The files of a workspace as they were at a step: trees of folders, named by the digests of what is in them. Pure."""
