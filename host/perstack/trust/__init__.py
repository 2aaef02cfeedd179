"""Trust in a folder: what a person has agreed to before anything that its definition names may act.

A perstack.toml may be written by somebody else. So each of its keys declares its effect (`core.definitions.keys.Key`),
and what has one does nothing before the user of the folder has agreed to it. `items` derives what needs an agreement,
and the definition without it (pure). `agreements` stores agreements by folder, outside of every workspace, has
`Agreement`, the check of a definition against them, and reads `.env` files that were agreed to. `definition_files` does
the same for includes, and for Experts of other files.

An agreement covers the content of the files that a declaration runs, since they change what it does. `command_files`
finds them in command lines and `rule_programs` in allow rules (both pure), `named_files` in tables of a definition,
with their content. Of words that may be data only files that git tracks count (`git_index`). What is run is also what
no Expert may change (`run_files`): a new kind of words in `named_files` must be right for both.

The kernel knows `engine.plugins.trust_checks.TrustCheck`, without which no Host is made, and two parts, without which
no Job is driven or no Expert added: `engine.context.protection.RUN_FILES` (`run_files`) and
`engine.runs.run_skills.EXPERT_OF_FILE` (`definition_files`). Doors ask for agreements in
`doors.shared.agreement_items`. State of other origin is a matter of `perstack.state_guard`, and grants of rules of
`perstack.config.grants`.
"""
