"""The command `perstack init`."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from perstack.config.project_place import ProjectPlace
from perstack.core.base.text import one_line
from perstack.core.definitions.project import Project
from perstack.diagnostics.doctor import ProviderState
from perstack.doors.cli.first_run.model_setup import EMBEDDED, ChosenProvider, choose_provider
from perstack.doors.cli.first_run.templates import DEFINITION, Template, model_lines, templates
from perstack.doors.cli.terminal import choose, print_choices, print_err, print_out, table
from perstack.doors.shared.agreement_items import agree_to_written
from perstack.doors.shared.screen import Screen
from perstack.errors import UsageError
from perstack.system.files import system_reason
from perstack.toml_reader.source import NotRead, read_bounded

_VARIABLE = re.compile(r"[A-Z][A-Z0-9]*_[A-Z0-9_]+")
_LIST = "?"  # the value of --template without a name
_IGNORED = (".env", "perstack/")
_UNSET = "# No provider is set up here yet: .env.example says what each needs, `perstack models` lists them."


@click.command("init")
@click.argument("folder", default=".")
@click.option(
    "--template",
    metavar="NAME",
    is_flag=False,
    flag_value=_LIST,
    help="The template, by default writer; without NAME, list all of them.",
)
@click.option(
    "--provider",
    metavar="NAME",
    help=("The provider; by default the first that is set up here (see `perstack models`)."),
)
@click.option("--model", metavar="NAME", help="The model; by default that of the provider.")
@click.option("--no-input", is_flag=True, help="Ask no questions.")
def init_command(folder: str, template: str | None, provider: str | None, model: str | None, no_input: bool) -> None:
    """Create a perstack.toml from a template, with .env.example and .gitignore, in FOLDER or the current folder.

    Also writes .perstack.schema.json, with which editors check and complete the file. Looks for keys, a local model
    server and the embedded model; at a terminal it asks which one to use, or for a key if there is none. Existing
    files are not changed.
    """
    if template == _LIST:
        table(Screen.of_stdout(), ("template", "what"), [(item.name, item.about) for item in templates().values()])
        return
    path = Path(folder)
    if path.exists() and not path.is_dir():
        raise UsageError(f"{path} is not a folder: name another one")
    if os.path.lexists(path / DEFINITION):
        raise UsageError(
            f"{path / DEFINITION} exists already: name another folder, or improve it with `perstack create`"
        )
    asks = not no_input and sys.stdin.isatty()
    states = asyncio.run(_provider_states(path if path.is_dir() else Path()))
    if provider is not None:
        _model_lines(states, provider, model)  # reports an error before asking anything
    chosen_template = _choose_template(template, asks=asks)
    name = provider or (_ask_provider(states) if asks else None)
    chosen = None
    if asks and name is None and not any(state.is_usable for state in states):
        chosen = choose_provider(states)
        states = asyncio.run(_provider_states(path if path.is_dir() else Path()))
    if chosen is None:
        lines = _model_lines(states, name, model)
    else:
        name = chosen.name
        lines = _model_lines(states, name, chosen.model or model) + _address_line(chosen)
    files = {
        **chosen_template.render(lines),
        ".env.example": _env_example(states),
        ".gitignore": "".join(f"{name}\n" for name in _IGNORED),
    }
    try:
        _write(path, files)
    except OSError as error:
        reason = system_reason(error)
        raise UsageError(f"{error.filename or path} cannot be written ({reason}): name another folder") from None
    agree_to_written(path)
    if name is None and not any(state.is_usable for state in states):
        print_err("no provider is set up here yet: `perstack models` says how")
    first = "" if folder == "." else f"cd {shlex.quote(folder)} && "
    # the templates' tasks are too hard for the embedded model
    command = (
        chosen_template.command if name != EMBEDDED else "perstack start, with a task of one step, such as a short text"
    )
    print_out(f"next: {one_line(first + command)}")


def _address_line(chosen: ChosenProvider) -> str:
    if chosen.base_url is None:
        return ""
    return f"\nprovider.setting.baseUrl = {json.dumps(chosen.base_url)}"


def _choose_template(name: str | None, *, asks: bool) -> Template:
    by_name = templates()
    default_name = next(iter(by_name))
    if name is None and asks:
        print_choices({template.name: template.about for template in by_name.values()})
        name = choose("Which of these", [*by_name])
    name = name or default_name
    if name not in by_name:
        raise UsageError(f"there is no template {name!r}: choose one of {', '.join(by_name)}")
    return by_name[name]


async def _provider_states(folder: Path) -> Sequence[ProviderState]:
    from perstack.host import Host
    from perstack.trust.agreements import environment_of

    place = ProjectPlace(folder, None)
    async with Host(Project(), workspace=folder, env=environment_of(Project(), place)) as host:
        return await host.experts.providers()


def _ask_provider(states: Sequence[ProviderState]) -> str | None:
    usable_states = [state for state in states if state.is_usable]
    if len(usable_states) < 2:
        return None
    print_choices({state.name: _default_model(state) or "has no default model" for state in usable_states})
    return choose("Which provider", [state.name for state in usable_states])


def _model_lines(states: Sequence[ProviderState], name: str | None, model: str | None) -> str:
    """Return the lines that name provider and model. Raises UsageError if either is unknown."""
    if name is None:
        state = next((state for state in states if state.is_usable), None)
    else:
        state = next((state for state in states if state.name == name), None)
        if state is None:
            raise UsageError(f"there is no provider {name!r}: choose one of {', '.join(each.name for each in states)}")
    if state is None:
        return _UNSET
    model_name = model or _default_model(state)
    if model_name is None:
        raise UsageError(f"provider {state.name} has no default model: name one with --model")
    lines = model_lines(state.name, model_name)
    if name is not None or model is not None or state.default_model is None or not state.is_configured:
        return lines
    comment = lines.replace("\n", "\n# ")
    return f"# The first provider that is set up is used, which is now {state.name}. To stay with it:\n# {comment}"


def _default_model(state: ProviderState) -> str | None:
    return state.default_model or (state.models[0].name if state.is_usable and state.models else None)


def _env_example(states: Sequence[ProviderState]) -> str:
    lines = [
        "# Copy this file to .env, fill in what you have, and agree to it with `perstack trust`. Never commit .env."
    ]
    for state in states:
        if names := _VARIABLE.findall(state.how_to_configure):
            lines += ["", f"# {state.name}: {state.how_to_configure}", *(f"# {name}=" for name in names)]
    return "\n".join(lines) + "\n"


def _write(path: Path, files: Mapping[str, str]) -> None:
    """Write the files that do not exist yet; perstack.toml comes last: until it exists, `init` can be repeated."""
    for name, text in sorted(files.items(), key=lambda item: item[0] == DEFINITION):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        try:
            with (path / name).open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            _report_kept(path / name)
        else:
            print_out(f"wrote {one_line(str(path / name))}")


def _report_kept(path: Path) -> None:
    print_out(f"kept {one_line(str(path))}")
    if path.name == ".gitignore":
        try:
            lines = read_bounded(path).decode("utf-8", "replace").split()
        except (NotRead, OSError):
            return  # a file that cannot be read was not written by this command
        if missing := [name for name in _IGNORED if name not in lines and name.rstrip("/") not in lines]:
            print_err(f"note: .gitignore does not ignore {' and '.join(missing)}: add that if this folder is in git")
