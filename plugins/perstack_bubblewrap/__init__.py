"""Programs of tools in a sandbox of bubblewrap."""
