"""Read perstack.toml: definition files with their includes become one `Project`, or a list of all their problems.

A Run never reads a file: it gets a `Project`, from here or from Python. For each file `definition_with_includes` reads
bounded text (`source`, `key_lines`), parses TOML, and reads every table into its model (`tables`), which collects
problems instead of stopping at the first. Experts become drafts (`experts`, `skills`), and references between them are
resolved once all files are read: delegates, evaluators, names of models.

A key that belongs to a feature above is read by a part: `experts.AGENT_SKILLS`, `definition_with_includes.SCHEDULES`,
`tables.SEPARATE_TABLES`. `perstack.definition_files` has the table of these, and is what callers use. A new key of an
Expert is a field of its model in `core.definitions`, and nothing here; a new kind of table is a case of
`DefinitionFile`.
"""
