"""Tools from async functions: the shortest way to write a skill in Python.

    kit = Toolkit("dice", settings=Settings)

    @kit.tool(effect="readOnly")
    async def roll(count: Annotated[int, Field(ge=1)], context: ToolContext[Settings]) -> list[int]:
        \"""Roll dice.

        Args:
            count: how many
        \"""
        return [random.randint(1, context.settings.sides) for _ in range(count)]

The kit is a plugin: name it in the entry point group `perstack`, or give it to `Host(plugins=[kit])`.

kit.py         the collection, and the plugin that it is
context.py     what a function is given, and the bytes that it may return
function.py    one function as a tool: its schema, and its arguments
docstring.py   what a docstring says of a tool and of its parameters
results.py     what a function returns, as a model is given it
validation.py  the settings of a declaration; what pydantic finds wrong, in one line
session.py     a kit that is up, for one Job
"""

from perstack.core.tools import Subject
from perstack.ports.toolkit.context import Blob, Setup, ToolContext
from perstack.ports.toolkit.kit import Toolkit

__all__ = ["Blob", "Setup", "Subject", "ToolContext", "Toolkit"]
