"""`perstack validate`."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from perstack.config.load import DefinitionFile
from perstack.config.problems import describe_problems, problems_to_json
from perstack.config.settings import Overrides
from perstack.core.definitions import Expert, Project
from perstack.core.models import Models
from perstack.errors import Problem
from perstack.frontends.cli.options import CONFIG, WORKSPACE, PlaceOptions, Setup
from perstack.frontends.cli.terminal import Screen, data, out, table
from perstack.frontends.cli.tool_costs import can_run, print_tools, tools_of, tools_to_json
from perstack.frontends.shared.checked import checked
from perstack.frontends.shared.words import count


@click.command("validate")
@click.option("--json", "as_json", is_flag=True, help="Problems and Experts as one JSON object.")
@click.option("--strict", is_flag=True, help="Take warnings for errors.")
@click.option("--tools", "with_tools", is_flag=True, help="Start the skills, and show what their tools cost a step.")
@click.option(
    "--json-schema", is_flag=True, help="Print the JSON schema of perstack.toml, for editors, and do no more."
)
@click.option("--config", metavar="FILE", help=CONFIG)
@click.option("--workspace", metavar="DIR", help=WORKSPACE)
def validate_command(
    as_json: bool, strict: bool, with_tools: bool, json_schema: bool, config: str | None, workspace: str | None
) -> None:
    """Check perstack.toml, and the files it includes, without running anything.

    Every problem is named at once, with file, line and key. Exit status 0 if the file can be used, 2 if not; with
    --tools, 1 if an Expert could not begin, because a skill of it is missing a variable or a plugin.
    """
    if json_schema:
        from perstack.config.json_schema import definition_schema

        data(json.dumps(definition_schema(), ensure_ascii=False, indent=2))
        return
    place = PlaceOptions(config, workspace, None)
    path = place.find().required()
    project, problems = _checked(path, place)
    is_usable = project is not None and not (strict and problems)
    offered = tools_of(project, place) if with_tools and is_usable and project is not None else {}
    if as_json:
        experts = [] if project is None else list(project.experts.values())
        found = _to_json(path, is_usable, problems, experts)
        data(json.dumps({**found, "tools": tools_to_json(offered)} if with_tools else found, ensure_ascii=False))
    else:
        _print(project, problems, is_usable)
        print_tools(offered)
    lacking = not all(map(can_run, offered.values()))
    sys.exit(int(lacking) if is_usable else 2)


def _checked(path: Path, place: PlaceOptions) -> tuple[Project | None, tuple[Problem, ...]]:
    definition = DefinitionFile(path)
    env = Setup(place, Overrides(), ()).env(Project(env_path=definition.project.env_path))
    return asyncio.run(checked(definition, env))


def _print(project: Project | None, problems: Sequence[Problem], is_usable: bool) -> None:
    for line in describe_problems(problems) if problems else ():
        out(line)
    if project is None:
        return
    if not is_usable:
        out("warnings are errors here, because of --strict")
        return
    if project.experts:
        rows = [_row(project, expert) for expert in project.experts.values()]
        table(Screen.of_stdout(), ("Expert", "version", "delegates", "skills", "model"), rows, texts=(2, 3))
    out(f"ok: {count(len(project.experts), 'Expert')}")


def _row(project: Project, expert: Expert) -> tuple[str, ...]:
    skills = ", ".join(skill.name for skill in expert.skills)
    return (
        expert.key,
        expert.version,
        ", ".join(expert.delegates) or "-",
        skills or "-",
        _models(expert.model or project.model or "-"),
    )


def _models(written: Models) -> str:
    return written if isinstance(written, str) else ", ".join(written)


def _to_json(path: Path, is_usable: bool, problems: Sequence[Problem], experts: Sequence[Expert]) -> dict[str, object]:
    return {
        "file": str(path),
        "ok": is_usable,
        "problems": problems_to_json(problems),
        "experts": [
            {
                "key": expert.key,
                "version": expert.version,
                "description": expert.description,
                "delegates": list(expert.delegates),
                "skills": [skill.name for skill in expert.skills],
                "tags": list(expert.tags),
                "model": expert.model,
            }
            for expert in experts
        ],
    }
