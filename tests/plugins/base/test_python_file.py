"""`file = "tools/orders.py"`: functions of a project as tools, agreed to like a command and imported alone."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from terminal import Terminal, reply

CLERK = """
[experts.clerk]
instruction = "Answer what customers ask."
[experts.clerk.skills.orders]
type = "pluginSkill"
file = "tools/orders.py"
"""
ORDERS = '''
from pathlib import Path

from pydantic import BaseModel

from perstack import ToolContext, tool

Path(__file__).with_name("imported").touch()


class Order(BaseModel):
    number: str
    state: str


@tool(effect="readOnly")
def find_order(number: str, context: ToolContext) -> Order:
    """Find an order.

    Args:
        number: as on the receipt
    """
    return Order(number=number, state=_state())


async def count_orders(since: str = "") -> int:
    """Count the orders."""
    return 3


def _state() -> str:
    return "shipped"
'''
RUN = ("run", "clerk", "Where is 7?", "--quiet", "--output", "text", "--provider", "scripted")


@pytest.fixture
def clerk(terminal: Terminal, tmp_path_factory: pytest.TempPathFactory) -> Terminal:
    terminal.as_stranger().env["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))
    calls = ("find_order", {"number": "7"}), ("count_orders", {})
    terminal.project(CLERK, clerk=[reply("", *calls), reply("Shipped.")] * 4)
    return write(terminal, ORDERS)


def write(terminal: Terminal, source: str) -> Terminal:
    (terminal.workspace / "tools").mkdir(exist_ok=True)
    (terminal.workspace / "tools" / "orders.py").write_text(source)
    return terminal


def imported(terminal: Terminal) -> bool:
    return (terminal.workspace / "tools" / "imported").exists()


def test_nothing_is_imported_before_an_agreement_and_a_changed_file_asks_again(clerk: Terminal) -> None:
    assert clerk.call("validate").code == 0
    shown = clerk.call("trust", "--show").out
    assert 'executes: file = "tools/orders.py"; as they are now: tools/orders.py' in shown
    refused = clerk.call(*RUN)
    assert (refused.code, "experts.clerk.skills.orders" in refused.err) == (2, True)
    assert clerk.call("tools", "clerk").code == 2
    assert not imported(clerk)
    clerk.call("trust", "--yes")
    assert clerk.call(*RUN).out == "Shipped.\n"
    assert imported(clerk)
    write(clerk, ORDERS.replace('"shipped"', '"lost"'))
    assert "since you agreed, tools/orders.py has changed" in clerk.call(*RUN).err
    clerk.call("trust", "--yes")
    assert clerk.call(*RUN).code == 0
    assert '{"number":"7","state":"lost"}' in clerk.call("log", "--tools").out


def test_the_command_tools_lists_what_the_model_sees(clerk: Terminal) -> None:
    clerk.call("trust", "--yes")
    *rows, last = clerk.call("tools", "clerk", columns=100).lines
    assert [" ".join(row.split()[:3]) for row in rows[-2:]] == [
        "find_order number orders",
        "count_orders since? orders",
    ]
    assert last.startswith("clerk: 20 tools, about 1,")
    document = json.loads(clerk.call("tools", "clerk", "--json").out)
    found = {tool["name"]: tool for tool in document["tools"]}["find_order"]
    assert (found["description"], found["effect"], found["skill"]) == ("Find an order.", "readOnly", "orders")
    assert found["inputSchema"]["properties"] == {"number": {"type": "string", "description": "as on the receipt"}}
    assert clerk.call("tools", "clark").code == 2


def test_a_toolkit_of_the_file_has_its_settings_and_hides_the_other_functions(clerk: Terminal) -> None:
    kit = '''
from pydantic import BaseModel
from perstack.toolkit import ToolContext, Toolkit

class Settings(BaseModel):
    shop: str = "none"

kit = Toolkit("any", settings=Settings)

@kit.tool(effect="readOnly")
def find_order(number: str, context: ToolContext[Settings]) -> str:
    """Find an order."""
    return helper(context.settings.shop)

def helper(shop: str) -> str:
    """Is no tool."""
    return f"at {shop}"
'''
    write(clerk, kit)
    clerk.project(f'{CLERK}settings.shop = "Lyon"\n', clerk=[reply("", ("find_order", {"number": "7"})), reply("ok")])
    clerk.call("trust", "--yes")
    assert clerk.call(*RUN).code == 0
    assert clerk.call("log", "--tools").lines[-1].endswith(": at Lyon")
    names = [tool["name"] for tool in json.loads(clerk.call("tools", "clerk", "--json").out)["tools"]]
    assert "helper" not in names
    clerk.project(f'{CLERK}settings.shpo = "Lyon"\n', clerk=[reply("ok")])
    clerk.call("trust", "--yes")
    assert "settings.shpo: Extra inputs are not permitted" in clerk.call(*RUN).err


WRONG = {
    "syntax": ("def find(:", "tools/orders.py:1: invalid syntax; correct the Python in it"),
    "a NUL": ("a = 1\0", "tools/orders.py:1: "),
    "nesting": (f"def f() -> int:\n    'f'\n    return {'(' * 5000}", "tools/orders.py:"),
    "no function": ("import json\n", "tools/orders.py:1: has no function to use as a tool: write `def NAME(…)`"),
    "only private": ('def _find(a: int) -> int:\n    "Find."\n', "tools/orders.py:1: has no function to use as a tool"),
    "no type": (
        '\n\ndef find(number):\n    "Find."\n',
        "tools/orders.py:3: tool find: parameter number has no type; annotate it, as in `number: str`",
    ),
    "no docstring": ("async def find(a: int): ...\n", "tools/orders.py:1: tool find: describe it in a docstring"),
    "stars": (
        'def find(*a: int):\n    "Find."\n',
        "tools/orders.py:1: tool find: parameter a cannot be passed by name",
    ),
    "one name twice": (
        'def find(a: int):\n    "Find."\n' * 2,
        "tools/orders.py:3: tool find: is already defined in line 1; rename one",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_error_in_the_file_is_one_line_with_its_place_also_before_an_agreement(clerk: Terminal, name: str) -> None:
    source, words = WRONG[name]
    write(clerk, source)
    shown = clerk.call("validate")
    assert shown.code == 2
    assert f"experts.clerk.skills.orders.file: {words}" in shown.lines[0]
    clerk.call("trust", "--yes")
    assert words in clerk.call(*RUN).err
    assert not imported(clerk)


RAISES = {
    "an error": (
        'def find(a: int):\n    "Find."\n1 / 0\n',
        "tools/orders.py:3: ZeroDivisionError: division by zero; correct it",
    ),
    "the end": ("x = 1\nraise SystemExit(3)", "tools/orders.py:2: SystemExit: 3; correct it"),
    "a file beside it": (
        'import prices\ndef find(a: int):\n    "Find."',
        "tools/orders.py:1: ModuleNotFoundError: No module named 'prices'; it is imported alone",
    ),
    "an unknown type": ('def find(a: Foo):\n    "Find."', "tools/orders.py:1: NameError: name 'Foo' is not defined"),
    "a later type": (
        'from __future__ import annotations\ndef find(a: Foo):\n    "Find."',
        "tools/orders.py:2: tool find: name 'Foo' is not defined; define or import",
    ),
    "a tool of a kit": (
        'from perstack.toolkit import Toolkit\nkit = Toolkit("a")\n@kit.tool()\ndef find(a):\n    "Find."',
        "tools/orders.py:3: tool find: parameter a has no type",
    ),
    "an empty kit": (
        'from perstack.toolkit import Toolkit\nkit = Toolkit("a")',
        "tools/orders.py:1: its Toolkit has no tool: write `@kit.tool()` above one",
    ),
    "two kits": (
        'from perstack.toolkit import Toolkit\na = Toolkit("a")\nb = Toolkit("b")',
        "tools/orders.py:1: has 2 Toolkits; put all of its tools into one",
    ),
}


@pytest.mark.parametrize("name", RAISES)
def test_an_error_of_the_import_is_one_line_with_its_place(clerk: Terminal, name: str) -> None:
    source, words = RAISES[name]
    write(clerk, source)
    (clerk.workspace / "prices.py").write_text("")
    (clerk.workspace / "tools" / "prices.py").write_text("")
    clerk.call("trust", "--yes")
    failed = clerk.call(*RUN)
    assert failed.code == 1
    assert words in failed.err
    assert len(failed.err.splitlines()) == 1
    assert str(clerk.workspace / "tools" / "orders.py") not in sys.modules


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ("", "experts.clerk.skills.orders.plugin: is missing: name a `plugin`, or a `file` with functions of yours"),
        ('file = ""', "experts.clerk.skills.orders.file: must not be empty"),
        ('file = "gone.py"', "experts.clerk.skills.orders.file: gone.py does not exist: name a Python file"),
        ('file = "tools"', "experts.clerk.skills.orders.file: tools is not a file: name a Python file"),
        ('file = "../a.py"', "experts.clerk.skills.orders.file: must be in "),
        ('file = "link.py"', "experts.clerk.skills.orders.file: must be in "),
        ('file = "tools/orders.py"\nplugin = "a"', "experts.clerk.skills.orders.file: cannot be beside `plugin`"),
        (
            'plugin = "a"',
            'for functions of your own write `file = "tools.py"` in place of `plugin`, or Expert(…, tools',
        ),
    ],
)
def test_a_wrong_key_says_what_to_write(clerk: Terminal, keys: str, words: str) -> None:
    (clerk.workspace / "link.py").symlink_to("/etc/hostname")
    clerk.project(CLERK.replace('file = "tools/orders.py"', keys), clerk=[])
    shown = clerk.call("validate")
    assert (shown.code, words in shown.out) == (2, True), shown.out


def test_an_included_file_names_a_file_of_its_own_folder(clerk: Terminal) -> None:
    (clerk.workspace / "tools" / "team.toml").write_text(CLERK.replace("tools/orders.py", "orders.py"))
    (clerk.workspace / "perstack.toml").write_text('include = ["tools/team.toml"]\n')
    clerk.call("trust", "--yes")
    assert clerk.call(*RUN).out == "Shipped.\n"
    write(clerk, ORDERS + "\n")
    assert clerk.call(*RUN).code == 2


def test_experts_read_the_file_and_cannot_change_it_or_what_python_would_load_for_it(clerk: Terminal) -> None:
    attacks = [
        ("writeTextFile", {"path": "tools/orders.py", "text": "evil"}),
        ("moveFile", {"source": "tools", "destination": "old"}),
        ("readTextFile", {"path": "tools/orders.py", "from": 0, "to": 3}),
        ("writeTextFile", {"path": "pydantic.py", "text": "raise SystemExit"}),
    ]
    clerk.script(clerk=[reply("", *attacks), reply("", ("find_order", {"number": "7"})), reply("Done.")])
    clerk.call("trust", "--yes")
    assert clerk.call(*RUN).out == "Done.\n"
    log = clerk.call("log", "--tools").out
    assert log.count("error") >= 2
    assert "from pathlib import Path" in log
    assert '"state":"shipped"' in log
    assert (clerk.workspace / "tools" / "orders.py").read_text() == ORDERS
    assert clerk.call("trust", "--show").out.startswith(f"{clerk.workspace}:\n  executes")
    assert not (clerk.workspace / "tools" / "__pycache__").exists()


def test_a_job_is_resumed_with_the_file_of_the_definition(clerk: Terminal, tmp_path: Path) -> None:
    clerk.call("trust", "--yes")
    assert clerk.call(*RUN, "--job-id", "one", "--max-steps", "1").code == 4
    assert clerk.run("resume", "one", "--max-steps", "5", "--quiet", "--output", "text").out == "Shipped.\n"
    assert clerk.call("verify", "one").code == 0
    assert clerk.call("replay", "one").code == 0
