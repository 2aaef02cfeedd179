"""Tools from functions: the shortest way to write a skill in Python.

    kit = Toolkit("dice", settings=Settings)

    @kit.tool(effect="readOnly", description="Roll dice.")
    async def roll(count: Annotated[int, Field(ge=1)], context: ToolContext[Settings]) -> list[int]:
        return [random.randint(1, context.settings.sides) for _ in range(count)]

Without `description` the function's docstring is used; its section `Args:` (Google style) describes the parameters.
The kit is a plugin: name it in the entry point group `perstack`, or give it to `Host(plugins=[kit])`. A project has its
own functions without a kit, in a `file` of perstack.toml or in `Expert(…, tools=[roll])`.

toolkit.py    the collection of functions, the plugin that it is, and its session in a Job
functions.py  one function as a tool: docstring, schema, arguments, settings, options
context.py    the context that a function receives, and the values that it may return
"""

from perstack.core.definitions.skills import Subject
from perstack.toolkit.context import Blob, Setup, ToolContext
from perstack.toolkit.functions import tool
from perstack.toolkit.toolkit import Toolkit

__all__ = ["Blob", "Setup", "Subject", "ToolContext", "Toolkit", "tool"]
