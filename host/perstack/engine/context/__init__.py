"""Everything that a Host works with: definitions, storage, plugins, dispatcher, limits, and their commands."""
