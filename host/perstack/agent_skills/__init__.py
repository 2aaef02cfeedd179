"""Knowledge of Experts from files in public formats: Agent Skills (folders with a SKILL.md) and AGENTS.md.

- `declarations`: the skills that a definition declares, one by one or by patterns of folders.
- `front_matter`: the YAML above a SKILL.md, read from untrusted and often imperfect text. It is pure.
- `skill_folders`, `agents_md`: the files themselves, read through handles, without links and within limits.
- `library`: the content of one Job. Each folder is read once, so all Runs that a process begins see the same.
- `load_tool`: the tool `loadSkill`, with which a model reads a skill.
- `bundles`: the files of a Job's skills as blobs, for workers on other machines.

What an Expert knows is fixed when its Run begins: the list of skills and the text of AGENTS.md are part of the recorded
instruction, and `startRun` has a digest of each skill's files. `loadSkill` reads no file that has changed since,
because nobody has agreed to it. So a change of `digest_of_files` makes the skills of recorded Runs unreadable.

The kernel asks two parts, and only for an Expert that declares something: `toml_reader.experts.AGENT_SKILLS` when a
definition is read, and `engine.plugins.knowledge.LIBRARY` when a Job is driven. The models of a declared skill and of
the record of AGENTS.md stay in `core.definitions`, because logs contain them.
"""
