"""The command `perstack validate`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import click

from perstack.config.project_place import SHIPPED_SCHEMA
from perstack.config.resolved_settings import asking_experts
from perstack.core.base.records import JsonObject
from perstack.core.base.text import count, one_line
from perstack.core.definitions.exec_grant import ASKS_NOTE
from perstack.core.definitions.experts import Expert
from perstack.core.definitions.models import Models
from perstack.core.definitions.project import Project
from perstack.core.definitions.skills import BASE_SKILL, ToolSpec, is_base_skill, tool_skills, with_base_skill
from perstack.core.messages.tool_search import tokens_of
from perstack.definition_files import open_definition
from perstack.diagnostics.prompt_preview import OfferedTools
from perstack.doors.cli.options import HostOptions, definition_options, json_option, run_with
from perstack.doors.cli.terminal import print_err, print_out, table, write_bytes, write_json
from perstack.doors.create import validate_definition
from perstack.doors.shared.next_step_phrases import cli_phrase
from perstack.doors.shared.screen import Screen
from perstack.doors.shared.text import describe_problems
from perstack.errors import Problem, SkillError
from perstack.host import Host

# The cost of each Expert's tools at every step, for `perstack validate --tools`.


def _tools_of(project: Project, options: HostOptions) -> dict[str, OfferedTools]:
    """Return the offered tools by Expert. Starts and stops the skills of one Expert after the other."""

    async def ask(host: Host) -> dict[str, OfferedTools]:
        return {key: await _offered_tools(host, key) for key in project.experts}

    return run_with(options.open_host(project), ask)


async def _offered_tools(host: Host, key: str) -> OfferedTools:
    try:
        return await host.experts.tools(key)
    except SkillError as error:
        # the costs of the other Experts are still reported
        return OfferedTools((), problems=(error.note,))


# The tools that are known without starting a skill, for `perstack validate --verbose`.

_CHOICE = f'skills."{BASE_SKILL}" = {{ type = "mcpStdioSkill", pick = ["files", "attemptCompletion"] }}'


KnownTools = dict[
    str, tuple[ToolSpec, ...] | None
]  # tools by skill; None for a skill that must be started to know them


def _known_tools(project: Project, env: Mapping[str, str]) -> dict[str, KnownTools]:
    from perstack.engine.plugins.registry import load_plugins
    from perstack.recordings.recorded_calls import tools_of_skill

    factories = load_plugins((), env).skills
    return {
        key: {skill.name: tools_of_skill(factories, skill) for skill in with_base_skill(expert.skills)}
        for key, expert in project.experts.items()
    }


def _tools_by_expert_to_json(tools_by_expert: Mapping[str, KnownTools]) -> JsonObject:
    return {
        key: {
            "tokens": sum(_tokens(specs or ()) for specs in by_skill.values()),
            "tools": {name: None if specs is None else len(specs) for name, specs in by_skill.items()},
        }
        for key, by_skill in tools_by_expert.items()
    }


def _print_known_tools(project: Project, tools_by_expert: Mapping[str, KnownTools]) -> None:
    rows: list[tuple[str, ...]] = []
    for key, by_skill in tools_by_expert.items():
        known_specs = [spec for specs in by_skill.values() for spec in specs or ()]
        skills = ", ".join(f"{name} {'?' if specs is None else len(specs)}" for name, specs in by_skill.items())
        rows.append((key, str(len(known_specs)), f"{_tokens(known_specs):,}", skills))
    print_out()
    table(Screen.of_stdout(), ("Expert", "tools", "about tokens", "tools of its skills"), rows, right=(1, 2))
    print_out(
        "The tools are sent with every request. `?`: known when the skill is started, as by `perstack tools EXPERT`."
    )
    experts = project.experts.items()
    keys = [key for key, expert in experts if not any(map(is_base_skill, tool_skills(expert.skills)))]
    if keys:
        print_out(f"note: {', '.join(keys)}: every tool of {BASE_SKILL}; to choose, by group or name: {_CHOICE}")


def _can_run(tools: OfferedTools) -> bool:
    """Return whether the Expert's Runs could begin: an unreachable server only means that its tools are missing."""
    return bool(tools.shown) or not tools.problems


def _tools_to_json(tools_by_expert: Mapping[str, OfferedTools]) -> JsonObject:
    return {
        key: {
            "tokens": _tokens(tools.shown),
            "tools": [
                {"name": spec.name, "skill": spec.skill_name, "tokens": tokens_of(spec), "deferred": deferred}
                for specs, deferred in ((tools.shown, False), (tools.deferred, True))
                for spec in specs
            ],
            "problems": [problem.text_for(cli_phrase) for problem in tools.problems],
        }
        for key, tools in tools_by_expert.items()
    }


def _print_tools(tools_by_expert: Mapping[str, OfferedTools]) -> None:
    screen = Screen.of_stdout()
    for key, tools in tools_by_expert.items():
        for problem in tools.problems:
            print_err(f"{'warning' if _can_run(tools) else 'error'}: {key}: {one_line(problem.text_for(cli_phrase))}")
        if not _can_run(tools):
            continue
        print_out()
        rows = [
            (skill, str(len(specs)), f"{_tokens(specs):,}" if not is_deferred else f"({_tokens(specs):,})", names)
            for (skill, is_deferred), specs in _group_by_skill(tools).items()
            if (names := ", ".join(spec.name for spec in specs))
        ]
        table(screen, (f"{key}: skill", "tools", "tokens", "names"), rows, right=(1, 2))
        print_out(f"{key}: about {_tokens(tools.shown):,} tokens of tools at every step{_deferred_note(tools)}")


def _deferred_note(tools: OfferedTools) -> str:
    if not tools.deferred:
        return ""
    return f"; {count(len(tools.deferred), 'tool')} of {_tokens(tools.deferred):,} (in brackets) found by a search"


def _group_by_skill(tools: OfferedTools) -> dict[tuple[str, bool], list[ToolSpec]]:
    groups: dict[tuple[str, bool], list[ToolSpec]] = {}
    for specs, is_deferred in ((tools.shown, False), (tools.deferred, True)):
        for spec in specs:
            groups.setdefault((spec.skill_name, is_deferred), []).append(spec)
    return groups


def _tokens(specs: Iterable[ToolSpec]) -> int:
    return sum(map(tokens_of, specs))


@click.command("validate")
@json_option("Print problems and Experts as a JSON object.")
@click.option("--strict", is_flag=True, help="Treat warnings as errors.")
@click.option(
    "--tools",
    "starts_skills",
    is_flag=True,
    help=("Start the skills, and show how many tokens their tools cost in each step."),
)
@click.option(
    "--verbose",
    is_flag=True,
    help="Also show how many tools are sent with each request, and their tokens, without starting a skill.",
)
@click.option("--json-schema", is_flag=True, help="Only print the JSON schema of perstack.toml, for editors.")
@definition_options
def validate_command(
    as_json: bool, strict: bool, starts_skills: bool, verbose: bool, json_schema: bool, options: HostOptions
) -> None:
    """Check perstack.toml, and the files it includes, without running anything.

    Reports every problem with file, line and key. Exit status 0 if the file can be used, 2 if not; with --tools, 1 if
    an Expert cannot start because a skill needs a variable or plugin that is missing.
    """
    if json_schema:
        write_bytes(SHIPPED_SCHEMA.read_bytes())
        return
    path = options.find().require_path()
    project, problems = _check_definition(path, options)
    is_usable = project is not None and not (strict and problems)
    usable = project if is_usable else None
    known = _known_tools(usable, options.env(usable)) if verbose and usable is not None else {}
    tools_by_expert = _tools_of(usable, options) if starts_skills and usable is not None else {}
    if as_json:
        document = _to_json(path, is_usable, problems, project)
        document |= {"knownTools": _tools_by_expert_to_json(known)} if verbose else {}
        write_json({**document, "tools": _tools_to_json(tools_by_expert)} if starts_skills else document)
    else:
        _print(project, problems, is_usable)
        if known and usable is not None:
            _print_known_tools(usable, known)
        _print_tools(tools_by_expert)
    lacking = not all(map(_can_run, tools_by_expert.values()))
    sys.exit(int(lacking) if is_usable else 2)


def _check_definition(path: Path, options: HostOptions) -> tuple[Project | None, tuple[Problem, ...]]:
    definition = open_definition(path, must_be_whole=False)
    env = options.env(Project(env_path=definition.project.env_path, path=str(path.absolute())))
    return asyncio.run(validate_definition(definition, env))


def _print(project: Project | None, problems: Sequence[Problem], is_usable: bool) -> None:
    for line in describe_problems(problems) if problems else ():
        print_out(line)
    if project is None:
        return
    if not is_usable:
        print_out("warnings count as errors, because of --strict")
        return
    if project.experts:
        rows = [_row(project, expert) for expert in project.experts.values()]
        table(Screen.of_stdout(), ("Expert", "version", "delegates", "skills", "model"), rows, texts=(2, 3))
    asking = asking_experts(project)
    if asking:
        print_out(f"note: {', '.join(asking)}: {ASKS_NOTE}")
    print_out(f"ok: {count(len(project.experts), 'Expert')}")


def _row(project: Project, expert: Expert) -> tuple[str, ...]:
    skills = ", ".join(skill.name for skill in expert.skills)
    return (
        expert.key,
        expert.version,
        ", ".join(expert.delegates) or "-",
        skills or "-",
        _models_of(project, expert),
    )


def _models_of(project: Project, expert: Expert) -> str:
    tier = expert.default_model_tier
    if expert.model is None and tier is not None:
        return _models(project.models.get(tier) or f"{tier} tier")
    return _models(expert.model or project.model or "-")


def _models(models: Models) -> str:
    return models if isinstance(models, str) else ", ".join(models)


def _to_json(path: Path, is_usable: bool, problems: Sequence[Problem], project: Project | None) -> dict[str, object]:
    experts = [] if project is None else list(project.experts.values())
    return {
        "file": str(path),
        "ok": is_usable,
        "problems": problems_to_json(problems),
        "asksExec": [] if project is None else list(asking_experts(project)),
        "experts": [
            {
                "key": expert.key,
                "version": expert.version,
                "description": expert.description,
                "delegates": list(expert.delegates),
                "skills": [skill.name for skill in expert.skills],
                "tags": list(expert.tags),
                "model": expert.model,
                "defaultModelTier": expert.default_model_tier,
            }
            for expert in experts
        ],
    }


def problems_to_json(problems: Iterable[Problem]) -> list[JsonObject]:
    """Return an object for each problem; `line` and `key` are null if unknown."""
    return [
        {
            "severity": problem.severity,
            "file": problem.file,
            "line": problem.line,
            "key": problem.key,
            "message": problem.message,
        }
        for problem in problems
    ]
