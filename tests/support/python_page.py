# ruff: noqa: E501 - a row of a table is one line
"""docs/python.md, made of the docstrings and signatures of what `import perstack` offers, and of the examples.

    python tests/support/python_page.py

writes the page. A public name needs a place in `PARTS`; a test compares, and runs and type-checks every example.
"""

from __future__ import annotations

import ast
import inspect
import sys
from importlib import import_module
from pathlib import Path

from field_tables import table_of
from pydantic import BaseModel

import perstack

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/python.md"
EXAMPLES = ROOT / "docs/python-examples"

HEAD = """# Python

`pip install perstack`, and a perstack.toml or [Experts made in Python](#experts-without-a-file). Everything here is typed
and imported on first use. Times are milliseconds. This page is made of the docstrings
(`python tests/support/python_page.py`); each example runs in a test, and passes `mypy --strict` and pyright.

| in pydantic-ai, OpenAI Agents or LangGraph you write | here you write |
| --- | --- |
| `agent.run_sync("…")`, `Runner.run_sync(agent, "…")`, `graph.invoke(…)` | `perstack.run_sync("writer", "…")` |
| `await agent.run("…")`, `await Runner.run(agent, "…")`, `await graph.ainvoke(…)` | `await host.run("writer", "…")` |
| `agent.iter(…)`, `result.stream_events()`, `graph.astream(…)` | `async for event in host.stream("writer", "…")` |
| `Agent(output_type=City)`, `with_structured_output(City)` | `run(…, output=City)`, `job.output` |
| `@agent.tool_plain`, `@function_tool`, `@tool` | `Expert(…, tools=[find_order])`, `file = "orders.py"` |
| `Agent("model", instructions="…")`, `create_react_agent(…)` | `Expert(name="…", instruction="…")`, `Host.of(experts=[…])` |
| `handoffs=[…]`, an agent as a tool, a subgraph | `delegates = ["helper"]` |
| `requires_approval=True`, `interrupt(…)` and `Command(resume=…)` | `[permissions] ask = […]`, `ask = true`; `host.answer("yes", question=…)` |
| `message_history=…`, `session=…`, `thread_id` | `host.continue_job("writer", "…", job_id=…)` |
| a checkpointer, a durable executor | nothing: every Job is logged, `host.resume(job_id)` continues it |
| `UsageLimits(…)`, `recursion_limit` | `Overrides(max_cost=…, max_steps=…)` |
"""

PARTS: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "Run an Expert": (
        "`run` and `run_sync` drive one Job. The status says whether it is done: a question, a limit or a failing model"
        " raise nothing.",
        ("run", "run_sync", "JobSummary", "Overrides", "Attachable", "Blob", "Event", "OnEvent", "__version__"),
        ("first_job.py",),
    ),
    "Iterate over a Job": (
        "A stream yields one of six frozen dataclasses. Each has `event`, the stored event, if there is one. A question"
        " may be answered in the loop; otherwise the stream ends after it.",
        ("StreamEvent", "TextDelta", "ToolCall", "ToolResult", "Question", "DelegateStarted", "Finished", "JobStream"),
        ("stream.py",),
    ),
    "A Host": (
        "A `Host` opens a project and its storage once. It also answers, continues, resumes and cancels Jobs, of any"
        " process.",
        ("Host", "By"),
        ("later.py",),
    ),
    "Results as objects": ("See [results](results.md#objects-in-python).", ("ParsedJob",), ("result.py",)),
    "Experts without a file": (
        "Keys are those of [perstack.toml](perstack-toml.md), in snake_case. Tools are plain or async functions: the schema"
        " comes from the type hints, the description from the docstring. A log has the names of the functions, so a Job is"
        " resumed by a program that gives them again. More in [plugins](plugins.md#tools-from-functions).",
        ("Expert", "Project", "tool", "ToolContext"),
        ("no_file.py",),
    ),
    "Errors": (
        "Each message is one line that says what to change. An unknown argument is a `UsageError` that names the nearest"
        " one, and a value of a wrong type one that names the right type.",
        (
            *(
                "PerstackError",
                "UsageError",
                "NotFound",
                "NotAllowed",
                "NotAgreed",
                "NeedsPerson",
                "CannotServe",
                "DefinitionError",
            ),
            *("ProviderError", "MissingCredential", "SkillError", "PluginError", "StorageError", "Conflict", "Damaged"),
            "DispatcherError",
        ),
        ("mistakes.py",),
    ),
    "In FastAPI": (
        "A browser reads a Job as it is driven, as server-sent events, until it ends or asks; a person answers over HTTP."
        " A reader that leaves interrupts the Job.",
        (),
        ("web_fastapi.py",),
    ),
    "In Django": (
        "The same, in async views. Each request opens a Host, so any server and its event loops will do.",
        (),
        ("web_django.py",),
    ),
}


def page() -> str:
    """Return the text of the page."""
    return HEAD + "".join(f"\n## {title}\n\n{_render_part(*part)}" for title, part in PARTS.items())


def _render_part(about: str, names: tuple[str, ...], examples: tuple[str, ...]) -> str:
    text = f"{about}\n"
    for name in examples:
        text += f'\n```python title="{name}"\n{(EXAMPLES / name).read_text()}```\n'
    return text + "".join(_render_entry(name) for name in names)


def _render_entry(name: str) -> str:
    shown, about = _describe(name, getattr(perstack, name))
    methods = ""
    if name in ("Host", "JobStream"):
        for method, found in inspect.getmembers(getattr(perstack, name), _is_method):
            if not method.startswith("_") and method not in ("is_asking", "answer" if name == "JobStream" else ""):
                methods += (
                    f"\n```python\n{_render_signature(f'{name}.{method}', found)}\n```\n\n{_render_docstring(found)}\n"
                )
    return f"\n### {name.strip('_')}\n\n```python\n{shown}\n```\n\n{about}\n{methods}"


def _is_method(found: object) -> bool:
    return inspect.isfunction(found) or inspect.ismethod(found)


def _describe(name: str, found: object) -> tuple[str, str]:
    if _is_method(found):
        return _render_signature(name, found), _render_docstring(found)
    if isinstance(found, type) and issubclass(found, BaseModel):
        others = {field: other for other, field in getattr(found, "argument_names", {}).items()}
        required = [others.get(field, field) for field, about in found.model_fields.items() if about.is_required()]
        more = ["…"] if len(required) < len(found.model_fields) else []
        rows = "Its fields are those of `JobSummary`." if found is perstack.ParsedJob else table_of(found)
        return f"{name}({', '.join([*required, *more])})", f"{_render_docstring(found)}\n\n{rows}"
    if found is perstack.Overrides:
        return "Overrides(…)", f"{_render_docstring(found)}\n\n{table_of(found)}"
    if found is perstack.JobStream:
        return "class JobStream", _render_docstring(found)
    if isinstance(found, type) and not issubclass(found, BaseException):
        return _render_signature(name, found), _render_docstring(found)
    if isinstance(found, type):
        return f"class {name}({found.__bases__[0].__name__})", _render_docstring(found)
    if name == "__version__":
        return "__version__: str", "Version of the package."
    return _read_alias(name)


def _render_signature(name: str, found: object) -> str:
    signature = inspect.signature(found)  # type: ignore[arg-type]
    parameters = [one for key, one in signature.parameters.items() if key != "self"]
    returned = signature.return_annotation
    arrow = "" if returned is inspect.Signature.empty or isinstance(found, type) else f" -> {returned}"
    parts: list[str] = []
    for one in parameters:
        if one.kind is inspect.Parameter.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        annotation = "" if one.annotation is inspect.Parameter.empty else f": {one.annotation}"
        default = "" if one.default is inspect.Parameter.empty else f" = {_render_default(one.default)}"
        parts.append(f"{one.name}{annotation}{default}")
    text = f"{name}({', '.join(parts)}){arrow}"
    return text if len(text) <= 110 else "\n".join([f"{name}(", *(f"    {one}," for one in parts), f"){arrow}"])


def _render_default(value: object) -> str:
    return (
        f'"{value}"'
        if isinstance(value, str)
        else "…"
        if callable(value) or repr(value).startswith("<")
        else repr(value)
    )


def _render_docstring(found: object) -> str:
    text = inspect.getdoc(found) or ""
    paragraphs = [" ".join(part.split()) for part in text.split("\n\n") if not part.startswith("    ")]
    return "\n\n".join(paragraphs).replace("See `Jobs.", "See `host.jobs.")


def _read_alias(name: str) -> tuple[str, str]:
    module = import_module(perstack._HOME_OF[name])
    body = ast.parse(inspect.getsource(module)).body
    for node, after in zip(body, [*body[1:], None], strict=True):
        target = (
            node.target
            if isinstance(node, ast.AnnAssign)
            else node.targets[0]
            if isinstance(node, ast.Assign)
            else None
        )
        if isinstance(target, ast.Name) and target.id == name and isinstance(node, (ast.Assign, ast.AnnAssign)):
            value = "" if node.value is None else ast.unparse(node.value).strip("'").replace("'", '"')
            about = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
            return f"{name} = {value}", " ".join(str(about).split()) or _ALIASES[name]
    raise LookupError(name)


_ALIASES = {
    "Event": "Every event of a Job, see [events](events.md).",
    "StreamEvent": "The closed union of what a stream yields: match it with `assert_never`.",
}


if __name__ == "__main__":
    PAGE.write_text(page())
    sys.exit(0)
