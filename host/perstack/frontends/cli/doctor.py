"""`perstack doctor`."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict

import click

from perstack.config.settings import Overrides
from perstack.engine.diagnosis import Finding
from perstack.engine.program_trial import RuntimeState
from perstack.frontends.cli.options import PlaceOptions, Setup, place_options
from perstack.frontends.cli.terminal import Screen, data, out, table


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="All of it as one JSON object.")
@place_options
def doctor_command(as_json: bool, config: str | None, workspace: str | None, storage: str | None) -> None:
    """Say what is there of what perstack needs, and what to do about what is not.

    That is Python, extras, providers and their keys, the place of the state, the terminal, where programs of tools can
    run, and how each limit of [sandbox] is kept there. Exit status 1 if something is in the way.
    """
    place = PlaceOptions(config, workspace, storage)
    setup = Setup(place, Overrides(), ())
    project = place.project(required=False)

    async def look() -> tuple[tuple[Finding, ...], tuple[RuntimeState, ...]]:
        async with place.host(project, env=setup.env(project)) as host:
            return await host.experts.diagnosis(), await host.experts.runtimes()

    diagnosis, runtimes = asyncio.run(look())
    findings = (*diagnosis, _terminal(), *map(_of_runtime, runtimes))
    if as_json:
        found = {"findings": [asdict(one) for one in findings], "runtimes": [asdict(one) for one in runtimes]}
        data(json.dumps(found, ensure_ascii=False))
    else:
        _print(findings, runtimes)
    sys.exit(int(any(one.state == "problem" for one in findings)))


def _terminal() -> Finding:
    kind = os.environ.get("TERM", "")
    encoding = (sys.stdout.encoding or "").lower().replace("-", "")
    if encoding != "utf8":
        return Finding("terminal", "missing", f"writes {encoding or 'no'} characters", "set LANG=C.UTF-8")
    if not sys.stdout.isatty():
        return Finding("terminal", "ok", "none: output is plain, and `run` prints JSON lines")
    colour = "no colour" if os.environ.get("NO_COLOR") or kind in ("", "dumb") else "colour"
    return Finding("terminal", "ok", f"{kind or 'of no kind'}, {Screen.of_stdout().width} columns, {colour}")


def _of_runtime(runtime: RuntimeState) -> Finding:
    about = f"runtime {runtime.name}"
    if not runtime.problem:
        return Finding(about, "ok", "perstack.toml uses it" if runtime.is_wanted else "can be used")
    what, _, remedy = runtime.problem.partition(": ")
    return Finding(about, "problem" if runtime.is_wanted else "missing", what, remedy)


def _print(findings: Sequence[Finding], runtimes: Sequence[RuntimeState]) -> None:
    rows = [(one.about, one.state, one.text) for one in findings]
    table(Screen.of_stdout(), ("what", "state", "here"), rows, whole=(0, 1))
    for one in findings:
        if one.state != "ok" and one.remedy:
            # a narrow table cuts what is wrong; that nothing is set up says its remedy too
            what = "" if one.text == "not set up" else f"{one.text}; "
            out(f"{one.about}: {what}{one.remedy}")
    for runtime in runtimes:
        for key, how in runtime.limits.items():
            out(f"{runtime.name}: `{key}` {how}")
