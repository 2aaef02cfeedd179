"""`perstack validate`."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from perstack.config.load import find_config, load_project
from perstack.config.problems import describe_problems, problems_to_json
from perstack.core.definitions import Expert, Project
from perstack.errors import DefinitionError, Problem, UsageError
from perstack.frontends.cli.show import Screen, count, table
from perstack.frontends.cli.tool_costs import can_run, print_tools, tools_of, tools_to_json


@click.command("validate")
@click.option("--json", "as_json", is_flag=True, help="Problems and Experts as one JSON object.")
@click.option("--strict", is_flag=True, help="Take warnings for errors.")
@click.option("--tools", "with_tools", is_flag=True, help="Start the skills, and show what their tools cost a step.")
@click.option("--config", metavar="FILE", help="perstack.toml; by default found from the workspace upward.")
@click.option("--workspace", metavar="DIR", default=".", help="The directory Experts work in.", show_default=True)
def validate_command(as_json: bool, strict: bool, with_tools: bool, config: str | None, workspace: str) -> None:
    """Check perstack.toml, and the files it includes, without running anything.

    Every problem is named at once, with file, line and key. Exit status 0 if the file can be used, 2 if not; with
    --tools, 1 if an Expert could not begin, because a skill of it lacks a variable or a plugin.
    """
    path = _found(config, workspace)
    project: Project | None = None
    try:
        loaded = load_project(path)
        refused = _refused(loaded.project, workspace)
        project = None if refused else loaded.project
        problems = (*refused, *loaded.warnings)
    except DefinitionError as error:
        problems = error.problems
    is_usable = project is not None and not (strict and problems)
    offered = tools_of(project, workspace) if with_tools and is_usable and project is not None else {}
    if as_json:
        experts = [] if project is None else list(project.experts.values())
        found = _to_json(path, is_usable, problems, experts)
        click.echo(json.dumps({**found, "tools": tools_to_json(offered)} if with_tools else found, ensure_ascii=False))
    else:
        _print(project, problems, is_usable)
        print_tools(offered)
    lacking = not all(map(can_run, offered.values()))
    sys.exit(int(lacking) if is_usable else 2)


def _refused(project: Project, workspace: str) -> tuple[Problem, ...]:
    """What the providers say of their settings; they are asked only if there are some."""
    if project.provider is None and all(expert.provider is None for expert in project.experts.values()):
        return ()
    from perstack.config.env import read_env
    from perstack.engine.plugins import load_plugins
    from perstack.engine.providers import refused_settings

    env = read_env(Path(workspace))
    return asyncio.run(refused_settings(project, load_plugins(env=env), env))


def _found(config: str | None, workspace: str) -> Path:
    if config is not None:
        return Path(config)
    if not Path(workspace).is_dir():
        raise UsageError(f"--workspace {workspace}: no such directory")
    found = find_config(Path(workspace))
    if found is None:
        raise UsageError(f"there is no perstack.toml in {Path(workspace).resolve()} or above; name one with --config")
    return found


def _print(project: Project | None, problems: Sequence[Problem], is_usable: bool) -> None:
    for line in describe_problems(problems) if problems else ():
        click.echo(line)
    if project is None:
        return
    if not is_usable:
        click.echo("warnings are errors here, because of --strict")
        return
    if project.experts:
        rows = [_row(project, expert) for expert in project.experts.values()]
        table(Screen.of_stdout(), ("Expert", "version", "delegates", "skills", "model"), rows)
    click.echo(f"ok: {count(len(project.experts), 'Expert')}")


def _row(project: Project, expert: Expert) -> tuple[str, ...]:
    skills = ", ".join(skill.name for skill in expert.skills)
    return (
        expert.key,
        expert.version,
        ", ".join(expert.delegates) or "-",
        skills or "-",
        expert.model or project.model or "-",
    )


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
