"""Where a project is, which grants its person gave, and the settings of a Run that its definition resolves to."""
