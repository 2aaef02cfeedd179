"""The commands `perstack expert`, `perstack tools` and `perstack sandbox`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import replace

import click
from pydantic import JsonValue

from perstack.core.base.records import JsonObject
from perstack.core.base.text import count, one_line
from perstack.core.definitions.settings import Overrides
from perstack.core.definitions.skills import ToolSpec
from perstack.core.messages.tool_search import tokens_of
from perstack.diagnostics.prompt_preview import PromptPreview
from perstack.doors.cli.options import (
    HostOptions,
    definition_options,
    driving_options,
    env_path_option,
    json_option,
    place_options,
    run_with,
    runtime_option,
)
from perstack.doors.cli.terminal import print_err, print_out, table, write_json, write_json_line
from perstack.doors.shared.next_step_phrases import cli_phrase
from perstack.doors.shared.screen import Screen


@click.group("expert")
def expert_command() -> None:
    """Show Experts without running them."""


@expert_command.command("list")
@json_option("Print lines of JSON.")
@definition_options
def list_command(as_json: bool, options: HostOptions) -> None:
    """List the Experts that can be run, with their descriptions."""
    experts = options.project(required=True).experts.values()
    if as_json:
        for item in experts:
            summary = {"key": item.key, "description": item.description, "delegates": [*item.delegates]}
            write_json({**summary, "tags": [*item.tags]})
        return
    rows = [(item.key, item.description or item.instruction, ", ".join(item.delegates) or "-") for item in experts]
    table(Screen.of_stdout(), ("Expert", "what it is for", "delegates"), rows, texts=(1,), drops=(2,))


@expert_command.command("show")
@click.argument("expert")
@click.option("--as-delegate", is_flag=True, help="Show what it is sent as a delegate of another Expert.")
@json_option("Print a JSON object.")
@driving_options
def show_command(expert: str, as_delegate: bool, as_json: bool, options: HostOptions) -> None:
    """Print exactly what the model of EXPERT is sent before the query, and the token cost of each part.

    Its skills are started and stopped for this. No tokens are used.
    """
    preview = run_with(options.open_host(), lambda host: host.experts.sent(expert, as_delegate=as_delegate))
    if as_json:
        write_json_line(json.dumps(_as_json(expert, preview, as_delegate=as_delegate), ensure_ascii=False).encode())
        return
    for problem in preview.problems:
        print_err(f"warning: {expert}: {one_line(problem.text_for(cli_phrase))}")
    _print(expert, preview, as_delegate=as_delegate)


def _as_json(expert: str, preview: PromptPreview, *, as_delegate: bool) -> JsonObject:
    tokens = preview.tokens()
    return {
        "expert": expert,
        "asDelegate": as_delegate,
        "provider": preview.provider,
        "model": preview.model,
        "contextWindow": preview.window,
        "tokens": sum(tokens.values()),
        "parts": [
            {"name": name, "tokens": tokens[name], **({"text": preview.parts[name]} if name in preview.parts else {})}
            for name in tokens
        ],
        "instruction": preview.instruction,
        "tools": _tools_as_json(preview.shown, preview.deferred),
        **({"providerTools": [*preview.provider_tools]} if preview.provider_tools else {}),
        **_knowledge(preview),
        "resultSchema": preview.schema,
        "problems": [problem.text_for(cli_phrase) for problem in preview.problems],
    }


def _tools_as_json(shown: Iterable[ToolSpec], deferred: Iterable[ToolSpec]) -> list[JsonValue]:
    return [
        {
            "name": spec.name,
            "description": spec.description,
            "inputSchema": spec.input_schema,
            "skill": spec.skill_name,
            "effect": spec.effect,
            "tokens": tokens_of(spec),
            "deferred": is_deferred,
        }
        for specs, is_deferred in ((shown, False), (deferred, True))
        for spec in specs
    ]


def _knowledge(preview: PromptPreview) -> JsonObject:
    if not preview.knowledge:
        return {}
    return {
        "agentSkills": [
            {
                "name": skill.name,
                "path": skill.path,
                "digest": skill.digest,
                "files": skill.files,
                "license": skill.license,
                "compatibility": skill.compatibility,
                "allowedTools": list(skill.allowed_tools),
            }
            for skill in preview.knowledge
        ]
    }


def _print(expert: str, preview: PromptPreview, *, as_delegate: bool) -> None:
    tokens = preview.tokens()
    model = "no usable provider" if preview.model is None else f"{preview.provider}/{preview.model}"
    print_out(f"{expert}, as a {'delegate' if as_delegate else 'Coordinator'}, on {model}")
    print_out()
    window = preview.window
    rows = [
        (name, f"{number:,}", "" if not window else f"{number / window:.1%}")
        for name, number in [*tokens.items(), ("all", sum(tokens.values()))]
    ]
    share = "" if window is None else f"of a window of {window:,}"
    table(Screen.of_stdout(), ("part", "about tokens", share), rows, right=(1, 2))
    if preview.knowledge:
        print_out()
        print_out("== agent skills: not sent before they are loaded ==")
    for skill in preview.knowledge:
        print_out(f"{skill.name}: {count(skill.files, 'file')} in {skill.path}, {skill.digest}")
        for name, text in (("license", skill.license), ("compatibility", skill.compatibility)):
            if text:
                print_out(f"  {name}: {one_line(text)}")
        if skill.allowed_tools:
            print_out(f"  allowed-tools (has no effect here): {one_line(' '.join(skill.allowed_tools))}")
    print_out()
    print_out("== instruction ==")
    print_out(preview.instruction)
    for title, specs in (("tools", preview.shown), ("tools that a search finds", preview.deferred)):
        if not specs:
            continue
        print_out()
        print_out(f"== {title} ==")
        for spec in specs:
            print_out(f"{spec.name}: {spec.description}")
            print_out(f"  {json.dumps(spec.input_schema, ensure_ascii=False)}")
    if preview.provider_tools:
        print_out()
        print_out("== tools that the provider runs ==")
        print_out(", ".join(preview.provider_tools))


# perstack tools


@click.command("tools")
@click.argument("expert")
@json_option("Print a JSON object.")
@env_path_option
@place_options
def tools_command(expert: str, as_json: bool, options: HostOptions) -> None:
    """List the tools that the model of EXPERT is offered, and the tokens that each costs in every request.

    Its skills are started and stopped for this. No tokens are used. `?` marks arguments that may be left out.
    """
    tools = run_with(options.open_host(), lambda host: host.experts.tools(expert))
    tokens = sum(map(tokens_of, tools.shown))
    if as_json:
        problems = [problem.text_for(cli_phrase) for problem in tools.problems]
        document: JsonObject = {"expert": expert, "tokens": tokens, "problems": [*problems]}
        write_json({**document, "tools": _tools_as_json(tools.shown, tools.deferred)})
        return
    for problem in tools.problems:
        print_err(f"warning: {expert}: {one_line(problem.text_for(cli_phrase))}")
    rows = [
        (spec.name, _arguments(spec), spec.skill_name, spec.effect, f"{tokens_of(spec):,}", spec.description)
        for spec in (*tools.shown, *tools.deferred)
    ]
    headings = ("tool", "arguments", "skill", "effect", "tokens", "what it does")
    table(Screen.of_stdout(), headings, rows, right=(4,), texts=(1, 5), drops=(3, 2))
    found = f"; a search finds {len(tools.deferred)} of them" if tools.deferred else ""
    print_out(f"{expert}: {count(len(rows), 'tool')}, about {tokens:,} tokens in every request{found}")


def _arguments(spec: ToolSpec) -> str:
    """Return the names of a tool's arguments."""
    properties, required = spec.input_schema.get("properties"), spec.input_schema.get("required")
    needed = required if isinstance(required, list) else []
    names = [*properties] if isinstance(properties, dict) else []
    return ", ".join(name if name in needed else f"{name}?" for name in names)


# perstack sandbox


@click.command("sandbox")
@click.argument("expert")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@runtime_option
@env_path_option
@place_options
def sandbox_command(expert: str, command: tuple[str, ...], runtime: str | None, options: HostOptions) -> None:
    """Run COMMAND as the exec tool of EXPERT does: in its runtime, with its variables and limits.

    Write COMMAND after `--`. Its input, output and exit status are those of this command; if a signal ended it, the
    status is 128 plus the number of the signal.
    """
    host = replace(options, overrides=Overrides(runtime=runtime)).open_host()
    result = run_with(host, lambda host: host.experts.run_program(expert, command))
    if result.ending.limit:
        print_err(f"ended by the sandbox: {result.ending.limit}")
    sys.exit(result.status if result.status >= 0 else 128 - result.status)
