"""The tools for Experts: the operations of `tasks/operation_table.py`, without those meant only for programs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from inspect import Parameter, Signature
from typing import Any

from perstack.core.base.records import Record
from perstack.core.definitions.skills import Effect, Subject
from perstack.errors import SkillError
from perstack.oversight.needed_decisions import Free, decisions_in, person_refusal
from perstack.tasks.memory import TASK_MEMORY, TaskMemory
from perstack.tasks.operation_table import OPERATIONS, Operation
from perstack.tasks.operations import CreateCommand, ListCommand, OnTask, TaskCommand
from perstack.toolkit import ToolContext, Toolkit

INSTRUCTIONS = """\
Keep a task for work that is longer than this conversation: whoever continues it sees its state, and nothing else.
Create it once, and look first whether it is there. Make a checkpoint after each part that is done, with a state that \
says what is done and what is left. Pause it if you must wait; complete it when everything is done."""

_MAX_LISTED = 50
_ANY_CASE = Subject(any_case=True)


def kit_of(operations: tuple[Operation, ...]) -> Toolkit:
    """Return the tools for the operations that an Expert may perform."""
    kit = Toolkit("@perstack/execution-memory", instructions=INSTRUCTIONS)
    for operation in operations:
        if "expert" in operation.callers:
            effect: Effect = "readOnly" if operation.is_read_only else "sideEffect"
            kit.tool(name=operation.tool, description=operation.description, effect=effect, subject=_ANY_CASE)(
                _create_function(operation)
            )
    return kit


def _create_function(operation: Operation) -> Callable[..., Awaitable[Record]]:
    """Return the tool function of an operation, with the operation's arguments as its signature."""

    async def work(context: ToolContext, **kwargs: object) -> Record:
        memory = _task_memory(context)
        command = _with_author(operation.command(**kwargs).through_a_door(), context.tool_call.expert_key)
        await _check_decides_nothing(operation, command, memory)
        return operation.to_result(command, await memory.do(command))

    arguments = operation.arguments("expert")
    parameters = [
        Parameter(
            argument.name,
            Parameter.KEYWORD_ONLY,
            default=Parameter.empty if argument.default is ... else argument.default,
            annotation=argument.type,
        )
        for argument in arguments
    ]
    context = Parameter("context", Parameter.KEYWORD_ONLY, annotation=ToolContext)
    vars(work)["__signature__"] = Signature([*parameters, context])
    work.__annotations__ = {**{argument.name: argument.type for argument in arguments}, "context": ToolContext}
    return work


async def _check_decides_nothing(operation: Operation, command: TaskCommand[Any], memory: TaskMemory) -> None:
    """Raise NeedsPerson if the call is a person's decision, as it is for callers of MCP or HTTP."""
    marks = operation.marks("expert")
    if all(isinstance(mark, Free) for mark in marks.values()):
        return
    subject = await memory.subject_of(command.task_id) if isinstance(command, OnTask) else None
    if decisions := decisions_in(marks, subject, command):
        raise person_refusal(decisions, reason="an Expert cannot")


def _with_author(command: TaskCommand[Any], expert_key: str) -> TaskCommand[Any]:
    match command:
        case CreateCommand():
            return replace(command, agent_id=expert_key)
        case ListCommand():
            return replace(command, limit=_MAX_LISTED)
        case _:
            return command


def _task_memory(context: ToolContext) -> TaskMemory:
    if not context.parts.has(TASK_MEMORY):
        raise SkillError("execution memory is not available here")
    return context.parts.get(TASK_MEMORY)


kit = kit_of(OPERATIONS)
