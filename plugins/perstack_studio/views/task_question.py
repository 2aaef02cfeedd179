"""The question of a task, and the form to answer it.

An answer is bound to the version of the task that was shown: the log refuses it if anything was written since, so of
two answers the first wins, and none reaches a later question of the same task.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from hashlib import sha256

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from perstack.core.jobs.answer_reading import AcceptedAnswers
from perstack.dataclass import dataclass
from perstack.errors import Conflict, NotFound, UsageError
from perstack.tasks.state import TaskState, accepted_answers, in_words
from perstack.tasks.waiting_tasks import asks_person
from perstack_studio.studio import Studio, read_form, render_page, see_other, studio_of
from perstack_studio.words import MAX_TEXT_CHARS


def pages() -> Iterable[BaseRoute]:
    """Return the routes: the question, and its answer."""
    yield Route("/tasks/{task}/question", _show_question, methods=["GET"])
    yield Route("/tasks/{task}/question", _answer, methods=["POST"])


@dataclass(frozen=True, slots=True)
class ShownTaskQuestion:
    """An open question of a task as a page shows it."""

    task: TaskState
    text: str
    waits_for: str  # other tasks that it waits for; empty for none
    state: str  # the state of the task as JSON; empty for none
    accepted: AcceptedAnswers
    is_whole: bool  # False if the page cuts a text: then a request for approval can only be refused here
    digest: str  # digest of the task's version and the shown texts

    @classmethod
    def of(cls, task: TaskState) -> ShownTaskQuestion:
        """Return the question of a task that asks a person."""
        text = task.pause_message or task.name
        state = json.dumps(task.state, ensure_ascii=False, indent=2) if task.state else ""
        shown = (text, task.name, task.description, task.agent_id, state)
        version_and_texts = json.dumps([task.task_id, task.version, *shown])
        return cls(
            task,
            text,
            in_words(task.blocked_by),
            state,
            accepted_answers(task),
            all(len(shown_text) <= MAX_TEXT_CHARS for shown_text in shown),
            sha256(version_and_texts.encode()).hexdigest(),
        )


async def _open_question(studio: Studio, task_id: str) -> ShownTaskQuestion:
    """Return the open question of a task. Raises NotFound for a hidden task, Conflict without a question."""
    task = await studio.host.tasks.get(task_id)
    if studio.served_project.definitions.hides(task.agent_id):
        raise NotFound(f"there is no task {task_id} of an agent that this server offers")
    if not asks_person(task):
        raise Conflict(f"the question of task {task_id} has been answered already, or was never asked")
    return ShownTaskQuestion.of(task)


async def _show_question(request: Request) -> Response:
    shown_question = await _open_question(studio_of(request), request.path_params["task"])
    return await render_page(request, "task_question.html", shown_question=shown_question, task=shown_question.task)


async def _answer(request: Request) -> Response:
    """Answer the question if the page showed its present form."""
    studio, fields = studio_of(request), await read_form(request)
    shown_question = await _open_question(studio, request.path_params["task"])
    if fields.get("digest") != shown_question.digest:
        raise Conflict("the task has changed since the page was loaded: read it again, then decide")
    task = shown_question.task
    await studio.host.tasks.signed(studio.by).answer(
        task.task_id, _answer_text(shown_question, fields), expected_version=task.version
    )
    return see_other("/")


def _answer_text(shown_question: ShownTaskQuestion, fields: dict[str, str]) -> str:
    """Return the answer of a form. Raises UsageError for an answer that is not accepted."""
    accepted, answer, reason = shown_question.accepted, fields.get("answer", ""), fields.get("reason", "").strip()
    if not answer.strip():
        raise UsageError("choose or write an answer")
    if accepted.options and answer not in accepted.options:
        raise UsageError("choose an answer")
    if accepted.is_yes_no and answer != "no" and not shown_question.is_whole:
        raise UsageError("the question was not shown completely, so only a no is accepted here")
    return f"{answer}: {reason}" if accepted.is_yes_no and reason else answer
