"""The commands `perstack doctor`, `models` and `plugins`."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from textwrap import fill

import click
from pydantic.alias_generators import to_camel

from perstack.config.resolved_settings import asking_experts
from perstack.core.base.text import count, suggestion
from perstack.core.definitions.exec_grant import ASKS_NOTE
from perstack.diagnostics.doctor import DoctorFinding, ProviderState, RuntimeState
from perstack.doors.cli.options import HostOptions, json_option, place_options, run_with
from perstack.doors.cli.terminal import print_err, print_out, table, write_json
from perstack.doors.shared.screen import Screen
from perstack.engine.plugins.registry import PluginInfo, load_plugins
from perstack.errors import NotFound
from perstack.host import Host
from perstack.ports.provider import OfferedModel

# perstack doctor


@click.command("doctor")
@json_option("Print a JSON object.")
@click.option("--all", "shows_all", is_flag=True, help="Show every check, and how to set up what is missing.")
@place_options
def doctor_command(as_json: bool, shows_all: bool, options: HostOptions) -> None:
    """Check what perstack needs on this machine, and show what to do about problems.

    Checks Python, extras, providers and their keys, the storage, the terminal, the runtimes of tool programs, and how
    each limit of [sandbox] is enforced. Exit status 1 if there is a problem.
    """
    project = options.project(required=False)

    async def look(host: Host) -> tuple[tuple[DoctorFinding, ...], tuple[RuntimeState, ...]]:
        return await host.experts.diagnosis(), await host.experts.runtimes()

    diagnosis, runtimes = run_with(options.host_of(project, env=options.env(project)), look)
    findings = (*diagnosis, _check_terminal(), *map(_runtime_finding, runtimes))
    if as_json:
        write_json({"findings": [*map(asdict, findings)], "runtimes": [*map(asdict, runtimes)]})
    else:
        _print(findings)
        if asking_keys := asking_experts(project):
            print_out(f"note: {', '.join(asking_keys)}: {ASKS_NOTE}")
        if shows_all:
            _print_all(findings, runtimes)
    sys.exit(int(any(finding.state == "problem" for finding in findings)))


def _check_terminal() -> DoctorFinding:
    kind = os.environ.get("TERM", "")
    encoding = (sys.stdout.encoding or "").lower().replace("-", "")
    if encoding != "utf8":
        return DoctorFinding("terminal", "missing", f"writes {encoding or 'no'} characters", "set LANG=C.UTF-8")
    if not sys.stdout.isatty():
        return DoctorFinding("terminal", "ok", "none: output is plain, and `run` prints JSON lines")
    colour = "no colour" if os.environ.get("NO_COLOR") or kind in ("", "dumb") else "colour"
    return DoctorFinding("terminal", "ok", f"{kind or 'unknown kind'}, {Screen.of_stdout().width} columns, {colour}")


def _runtime_finding(runtime: RuntimeState) -> DoctorFinding:
    about = f"runtime {runtime.name}"
    if not runtime.problem:
        return DoctorFinding(about, "ok", "perstack.toml uses it" if runtime.is_wanted else "can be used")
    problem, _, remedy = runtime.problem.partition(": ")
    return DoctorFinding(about, "problem" if runtime.is_wanted else "missing", problem, remedy)


def _print(findings: Sequence[DoctorFinding]) -> None:
    """Print the problems with their remedies, and a line each for what is fine and what is not set up."""
    problems = [finding for finding in findings if finding.state == "problem"]
    print_out(f"{count(len(problems), 'problem')}{':' if problems else ''}")
    for problem in problems:
        print_out(f"  {problem.about}: {problem.text}{f'; {problem.remedy}' if problem.remedy else ''}")
    print_out(_group_line("fine", [finding.about for finding in findings if finding.state == "ok"]))
    missing = [finding.about for finding in findings if finding.state == "missing"]
    if missing:
        print_out(_group_line("not set up, and not needed (--all says how)", missing))


def _group_line(title: str, abouts: Sequence[str]) -> str:
    """Return a line such as `title: Python; extra acp, start`, broken between words on a terminal."""
    groups = dict[str, list[str]]()
    for kind, _, name in (about.partition(" ") for about in abouts):
        groups.setdefault(kind, []).append(name)
    words = "; ".join(" ".join((kind, ", ".join(names))).rstrip() for kind, names in groups.items())
    return fill(f"{title}: {words}", Screen.of_stdout().width, subsequent_indent="  ", break_on_hyphens=False)


def _print_all(findings: Sequence[DoctorFinding], runtimes: Sequence[RuntimeState]) -> None:
    print_out()
    rows = [(finding.about, finding.state, finding.text) for finding in findings]
    table(Screen.of_stdout(), ("what", "state", "here"), rows, whole=(0, 1))
    for finding in findings:
        if finding.state != "ok" and finding.remedy:
            # a narrow table cuts the problem; for "not set up" the remedy is enough
            prefix = "" if finding.text == "not set up" else f"{finding.text}; "
            print_out(f"{finding.about}: {prefix}{finding.remedy}")
    for runtime in runtimes:
        for key, enforcement in runtime.limits.items():
            print_out(f"{runtime.name}: `{key}` {enforcement}")


@click.command("models")
@click.argument("provider", required=False)
@json_option("Print a JSON object.")
@place_options
def models_command(provider: str | None, as_json: bool, options: HostOptions) -> None:
    """List the providers, with those that are set up here and the default; for PROVIDER, all its models.

    Context is the context window of a model, in tokens. Prices are published prices in US dollars for a million tokens.
    """
    project = options.project(required=False)
    providers = run_with(options.host_of(project, env=options.env(project)), lambda host: host.experts.providers())
    if provider is not None:
        names = [state.name for state in providers]
        providers = tuple(state for state in providers if state.name == provider)
        if not providers:
            hint = suggestion(provider, names)
            raise NotFound(f"there is no provider {provider!r}{hint or ': `perstack models` lists them'}")
    if as_json:
        write_json({"providers": [_to_json(state) for state in providers]})
    elif provider is None:
        _print_providers(providers)
    else:
        _print_models(providers[0])


def _to_json(state: ProviderState) -> dict[str, object]:
    models = [_camel_case_keys(asdict(model)) for model in state.models]
    return _camel_case_keys({**asdict(state), "models": models})


def _camel_case_keys(fields: Mapping[str, object]) -> dict[str, object]:
    return {to_camel(name): value for name, value in fields.items()}


def _print_providers(states: Sequence[ProviderState]) -> None:
    rows = [
        (item.name, item.default_model or "-", *_cells(_default_of(item)), f"{len(item.models) or '-'}", _usage(item))
        for item in states
    ]
    headings = ("provider", "default model", "context", "in", "out", "models", "here")
    table(Screen.of_stdout(), headings, rows, right=(2, 3, 4, 5), drops=(5, 2, 4, 3, 1))
    for item in states:
        if not item.is_configured:
            print_out(f"{item.name}: {item.how_to_configure}")
    if not any(item.is_configured for item in states):
        print_err("no provider is set up: one of these is enough, in the environment or in a file .env")


def _usage(state: ProviderState) -> str:
    if not state.is_configured:
        return "not set up"
    use = "the default" if state.is_default else "ready"
    return f"{use}; {state.problem}" if state.problem else use


def _default_of(state: ProviderState) -> OfferedModel:
    return next((model for model in state.models if model.name == state.default_model), OfferedModel(""))


def _print_models(state: ProviderState) -> None:
    if state.models:
        rows = [(model.name, *_cells(model)) for model in state.models]
        table(Screen.of_stdout(), ("model", "context", "in", "out"), rows, right=(1, 2, 3))
    else:
        print_out(f"{state.name} does not list its models: {state.problem or 'see the pages of the provider'}")


def _cells(model: OfferedModel) -> tuple[str, str, str]:
    window = "-" if model.context_window is None else f"{model.context_window:,}"
    return window, _price_text(model.input_price), _price_text(model.output_price)


def _price_text(price: float | None) -> str:
    return "-" if price is None else f"{price:.2f}"


@click.command("plugins")
@json_option("Print a JSON object.")
def plugins_command(as_json: bool) -> None:
    """List the installed plugins, with their packages and what each provides.

    Plugins come from installed packages, through the entry point group `perstack`, and from modules that
    PERSTACK_PLUGINS names. A plugin that cannot be loaded is listed with its error and not used.
    """
    # broken plugins are reported below, once
    with contextlib.redirect_stderr(io.StringIO()):
        infos = load_plugins(env=os.environ).infos
    if as_json:
        write_json({"plugins": [_plugin_json(info) for info in infos]})
        return
    screen = Screen.of_stdout()
    rows = [(info.name, f"{info.package} {info.version}".rstrip(), _contributions(info)) for info in infos]
    table(screen, ("plugin", "package", "brings"), rows)
    for info in infos:
        if info.error is not None:
            print_err(f"plugin {info.name} of {info.package} was not loaded: {info.error}")


def _contributions(info: PluginInfo) -> str:
    if info.error is not None:
        return "nothing: it cannot be loaded"
    parts = [
        f"{noun}{'' if len(names) == 1 else 's'} {', '.join(names)}"
        for noun, names in (
            ("storage", info.storages),
            ("provider", info.providers),
            ("skill", info.skills),
            ("runtime", info.runtimes),
            ("dispatcher", info.dispatchers),
            ("format", info.formats),
        )
        if names
    ]
    if info.listeners:
        parts.append(count(info.listeners, "listener"))
    return "; ".join(parts) or "nothing yet"


def _plugin_json(info: PluginInfo) -> dict[str, object]:
    return {
        "name": info.name,
        "package": info.package,
        "version": info.version,
        "storages": list(info.storages),
        "providers": list(info.providers),
        "skills": list(info.skills),
        "runtimes": list(info.runtimes),
        "dispatchers": list(info.dispatchers),
        "formats": list(info.formats),
        "listeners": info.listeners,
        "error": info.error,
    }
