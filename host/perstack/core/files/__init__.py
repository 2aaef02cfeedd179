"""File names, globs of paths, line diffs and edits of texts, without access to files."""
