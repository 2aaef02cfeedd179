"""Runtime that starts the programs of tools in a bubblewrap sandbox."""
