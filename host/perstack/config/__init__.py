"""The place of a project, the grants of its person, and the settings of a Run that its definition resolves to."""
