"""docs/cli.md and its parts say what `--help` says, and their examples are commands that exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
from pages import keep_part

from perstack.core.definitions.settings import options
from perstack.doors.cli import commands
from perstack.doors.cli.exit_statuses import EXIT_CODES
from perstack.doors.cli.main import perstack
from perstack.doors.cli.plugin_commands import listed_groups, plugin_commands

LISTED = listed_groups()
EXAMPLES = commands.EXAMPLES | {name: found.entry.examples for name, found in plugin_commands().items()}

DOCS = Path(__file__).parents[2] / "docs"
PARTS = {  # the pages with the commands of each group
    "cli-jobs": ("Run Experts", "Answer", "Inspect"),
    "cli-tasks": ("Tasks", "Maintain", "Audit"),
    "cli-define": ("Define Experts", "Set up", "Serve"),
}
PAGE_OF = {name: page for page, groups in PARTS.items() for group in groups for name in LISTED[group]}
PAGE = "".join((DOCS / f"{name}.md").read_text(encoding="utf-8") for name in ("cli", *PARTS))

# a command keeps the help option that it is first asked for: it has to be that of the program
ROOT = click.Context(perstack, info_name="perstack", **perstack.context_settings)
WHERE = ("config", "workspace", "storage")
MODEL = (*options(), "env_path", "permissions")
SHOW = ("output", "stream", "quiet", "compact", "verbose", "no_input")
TASK = ("expected_version", "as_json")
GROUPS = (("where", WHERE), ("model", MODEL), ("show", SHOW), ("task", TASK))

BAR = "\\|"
"""How a table's cell has the sign that divides cells."""


def commands_of(group: click.Group, parent: click.Context, prefix: str = "") -> dict[str, click.Command]:
    """All commands in the order of the help, those of a group after it: `task`, `task create`."""
    found: dict[str, click.Command] = {}
    for name in group.list_commands(parent):
        command = found[prefix + name] = group.get_command(parent, name)
        if isinstance(command, click.Group):
            found |= commands_of(command, click.Context(command, info_name=name, parent=parent), f"{prefix}{name} ")
    return found


COMMANDS = commands_of(perstack, ROOT)


def context(name: str) -> click.Context:
    parent = ROOT
    for word in name.split():
        parent = click.Context(COMMANDS[name if word == name.split()[-1] else word], info_name=word, parent=parent)
    return parent


def rows(name: str, params: list[click.Parameter]) -> list[str]:
    """The options as `--help` has them, as rows of a table."""
    records = [param.get_help_record(context(name)) for param in params]
    # an argument has no words of its own: the text around its name tells of it
    found = [record for record in records if record is not None and record[1]]
    return [f"| `{option.replace('|', BAR)}` | {meaning} |" for option, meaning in found]


def shared_groups(name: str) -> list[str]:
    """Which groups of options a command takes whole."""
    names = {param.name for param in COMMANDS[name].params}
    return [group for group, members in GROUPS if names >= set(members)]


def own_options(name: str) -> list[click.Parameter]:
    taken = {member for group in shared_groups(name) for member in dict(GROUPS)[group]}
    return [param for param in COMMANDS[name].params if param.name not in taken]


def usage(name: str) -> str:
    pieces = COMMANDS[name].collect_usage_pieces(context(name))
    return f"`perstack {name} {' '.join(pieces)}`"


def section(heading: str) -> str:
    start = PAGE.index(f"\n{heading}\n") + 1
    end = re.search(r"^###? ", PAGE[start + 3 :], re.MULTILINE)
    return PAGE[start:] if end is None else PAGE[start : start + 3 + end.start()]


def table(text: str) -> list[str]:
    return re.findall(r"^\| `.*$", text, re.MULTILINE)


def test_the_page_has_a_section_for_each_command_in_the_order_of_the_help() -> None:
    assert re.findall(r"^###? `([\w -]+)`$", PAGE, re.MULTILINE) == list(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_commands_section_has_its_usage_and_every_option_with_its_meaning(name: str) -> None:
    text = section(f"{'###' if ' ' in name else '##'} `{name}`")
    assert usage(name) in text
    assert table(text) == rows(name, own_options(name))
    taken = re.findall(r"\[(where|model|show|task)\]\(cli.md#shared-options\)", text)
    assert taken == shared_groups(name)


def heading(name: str) -> str:
    return f"{'###' if ' ' in name else '##'} `{name}`"


def plain(markdown: str) -> str:
    """The words alone: what links, code and line ends add to them is left out."""
    return " ".join(re.sub(r"\[((?:[^\[\]]|`[^`]*`)*)\]\([^)]*\)", r"\1", markdown).replace("`", "").split())


@pytest.mark.parametrize("name", COMMANDS)
def test_a_commands_section_begins_with_what_its_help_begins_with(name: str) -> None:
    first = re.match(r".*?\.(?= |$)", plain(COMMANDS[name].help or ""))
    assert first is not None, "the help begins with a sentence"
    text = section(heading(name)).partition(usage(name))[2]
    assert plain(text).startswith(first[0])


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_the_same_examples_in_its_section_and_in_its_help(name: str) -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```$", section(heading(name)), re.MULTILINE | re.DOTALL)
    assert blocks == ["".join(f"{line}\n" for line in EXAMPLES[name])]
    shown = COMMANDS[name].get_help(context(name)).partition("\n\n  Examples:\n")[2]
    assert [line.strip() for line in shown.splitlines()] == list(EXAMPLES[name])


def test_there_are_examples_of_every_command_and_of_nothing_else() -> None:
    assert sorted(EXAMPLES) == sorted(COMMANDS)


def test_the_page_lists_the_commands_in_the_groups_of_the_help() -> None:
    text = section("## Commands")
    assert re.findall(r"^\*\*(.*)\*\*$", text, re.MULTILINE) == list(LISTED)
    every = [
        f"| [`{name}`]({PAGE_OF[name]}.md#{name}) | {listed} |"
        for group in LISTED.values()
        for name, listed in group.items()
    ]
    assert re.findall(r"^\| \[.*$", text, re.MULTILINE) == every


@pytest.mark.parametrize("width", [80, 200])
def test_the_help_lists_each_command_on_one_line(width: int) -> None:
    lines = perstack.get_help(click.Context(perstack, ROOT, info_name="perstack", terminal_width=width)).splitlines()
    for group, group_commands in LISTED.items():
        start = lines.index(f"{group}:")
        ends = [f"  {name:<11}  {listed}" for name, listed in group_commands.items()]
        assert lines[start + 1 : start + 1 + len(ends)] == ends


def test_the_shared_options_are_those_of_every_command_that_takes_them() -> None:
    printed = re.findall(r"(?:^\| `.*\n)+", section("## Shared options"), re.MULTILINE)
    for (group, members), table_of_group in zip(GROUPS, printed, strict=True):
        tables = [
            "".join(
                f"{row}\n" for row in rows(name, [param for param in COMMANDS[name].params if param.name in members])
            )
            for name in COMMANDS
            if group in shared_groups(name)
        ]
        assert {keep_part("docs/cli.md", table_of_group, tables[0])} == set(tables)


def test_the_exit_codes_are_those_of_the_program() -> None:
    text = section("## Exit status")
    assert table(text) == [f"| `{code}` | {meaning} |" for code, meaning in EXIT_CODES.items()]
    for code, meaning in EXIT_CODES.items():
        assert re.search(rf"\b{code}\s+{meaning}", " ".join((perstack.help or "").split()))


def typed(line: str) -> list[str]:
    """The words of the perstack command in a line of a shell."""
    line = re.sub(r'^eval "\$\((.*)\)"$', r"\1", line)
    words = shlex.split(line.replace("| jq", "\n| jq").partition("\n")[0], comments=True)
    words = words[words.index("perstack") + 1 :]
    ends = [words.index(sign) for sign in ("|", ">", "<") if sign in words]
    return words[: min(ends, default=len(words))]


@pytest.mark.parametrize(
    "line", sorted({*re.findall(r"^perstack .*$", PAGE, re.MULTILINE), *sum(EXAMPLES.values(), ())})
)
def test_every_example_is_a_command_with_options_that_exist(line: str) -> None:
    name, *args = typed(line)
    if isinstance(COMMANDS[name], click.Group):
        name, args = f"{name} {args[0]}", args[1:]
    COMMANDS[name].make_context(name, args, ROOT)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_says_what_it_does_in_a_sentence(name: str) -> None:
    for param in COMMANDS[name].params:
        if isinstance(param, click.Option) and not param.hidden:
            assert re.match(r"[A-Z.a-z].*", param.help or ""), param.name
            assert len(param.help or "") > 8, param.name
