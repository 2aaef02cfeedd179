"""Doors of the host: each parses input, calls the Host and shows events, and does nothing else.

`cli` is the command line; in `create`, Experts write definitions. The other doors are plugins, like those of third
parties: each has a command of the command line (`ports.commands`) and may import the packages here. `perstack_tui` is
the terminal program, `perstack_server` serves Experts, Jobs and tasks over MCP and HTTP, `perstack_acp` is an agent for
editors. `operations` holds the operations that several doors offer, `served_project` the project that a server offers,
`shared` the texts, forms and streams that all of them use.

Imports point in one direction: the plugins, `cli`, `create`, `operations`, `served_project`, `shared`. The import
contracts in pyproject.toml check it. Rules about Jobs, permissions and storage belong below the Host: a rule written in
one door is missing in the others.
"""
