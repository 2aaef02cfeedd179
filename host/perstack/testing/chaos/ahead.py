"""What each process would otherwise do at the first use of a class, done once for all that are forked from this one."""

from __future__ import annotations

import sys
from contextlib import suppress

from pydantic import BaseModel, PydanticUndefinedAnnotation, ValidationError

from perstack.core.events import parse_event
from perstack.core.iterations.events import parse_series_event
from perstack.core.tasks.events import parse_task_event


def build_models() -> None:
    """The validators of all models that are imported: they take most of a process's time."""
    waiting = BaseModel.__subclasses__()
    while waiting:
        model = waiting.pop()
        waiting += model.__subclasses__()
        if not model.__pydantic_complete__:
            with suppress(AttributeError, PydanticUndefinedAnnotation):  # one that is only to be inherited from
                model.model_rebuild()
    for parse in (parse_event, parse_task_event, parse_series_event):
        with suppress(ValidationError):
            parse(b"{}")


def compile_dataclasses() -> None:
    """The constructors of all classes of perstack that are imported."""
    for name, module in list(sys.modules.items()):
        if name.startswith("perstack"):
            for made in list(vars(module).values()):
                if isinstance(made, type):
                    getattr(made, "__init__")  # noqa: B009 - asked for, it is compiled; checkers forbid it plainly
