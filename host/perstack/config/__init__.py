"""Definition files: find, read and check perstack.toml, and resolve the settings of a Run."""
