"""A Job that covers everything a recording contains, and the facts in which two Jobs must agree."""

from __future__ import annotations

import json
from pathlib import Path

from hosts import OPENED, QUESTION, Bench, project_of, wait_for

from perstack.core.base.ids import By
from perstack.core.definitions.experts import Expert
from perstack.core.definitions.permissions import Permissions
from perstack.core.definitions.project import Project
from perstack.core.definitions.settings import Overrides, ProviderSetting
from perstack.core.definitions.skills import InteractiveSkill, InteractiveTool, McpStdioSkill, Skill, ToolSpec
from perstack.core.jobs.summary import JobSummary
from perstack.core.runs.facts import Question
from perstack.host import Host
from perstack.ports.hooks import hookimpl
from perstack.ports.skill import SkillFactory, SkillSession, ToolCall, ToolResult, Toolset
from perstack.testing.scripted import Turn, text, tool, turn

ANN = By(user="ann", door="python")
FORM = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
BOOK = ToolSpec(name="book", description="Books a journey", input_schema={"type": "object", "required": ["who"]})


class Travel(SkillFactory, SkillSession):
    """A skill in place of a server: its tool `book` asks for the destination."""

    name = "travel"

    def __init__(self) -> None:
        self.calls = 0

    def handles(self, definition: Skill) -> bool:
        return isinstance(definition, McpStdioSkill) and definition.name == "travel"

    async def open(self, definition: object, context: object) -> Travel:
        return self

    async def tools(self) -> Toolset:
        return Toolset((BOOK, ToolSpec(name="never")))

    async def call(self, call: ToolCall) -> ToolResult | Question:
        self.calls += 1
        if not call.answers:
            return Question(message=f"{call.args['who']}: where to?", requested_schema=FORM)
        return ToolResult.text(f"booked {call.answers[-1].content['city']}, ticket {self.calls}")

    async def close(self) -> None:
        pass

    @hookimpl
    def perstack_skills(self) -> list[Travel]:
        return [self]


def exec_(*words: str) -> dict[str, object]:
    return {"command": words[0], "args": [*words[1:]]}


SCRIPT: dict[str, list[Turn]] = {
    "[[boss]]": [
        turn(
            tool("exec", exec_("sh", "-c", "date +%N; echo hi")),
            tool("writeTextFile", {"path": "out.md", "text": "# Out\n"}),
            text="First a look.",
            thinking="What is there?",
            usage=(100, 20),
        ),
        turn(tool("hand", {"query": "left"}), tool("hand", {"query": "right"}), usage=(200, 30)),
        turn(tool("askUser", {"question": "Which colour?"}), usage=(300, 3)),
        turn(tool("book", {"who": "ann"}), usage=(400, 4)),
        turn(tool("appendTextFile", {"path": "out.md", "text": "more\n"}), usage=(500, 5)),
        turn(tool("attemptCompletion", {}), usage=(600, 6)),
        turn(text="All of it is done.", usage=(700, 7)),
    ],
    "[[hand]]": [
        turn(tool("readTextFile", {"path": "notes.txt"}), usage=(10, 1)),
        turn(text="Seen.", usage=(20, 2)),
    ],
}
NO_SCRIPT: dict[str, list[Turn]] = {"[[nobody]]": [text("never said")]}


def team(**changes: object) -> tuple[Expert, Expert]:
    asking = InteractiveSkill(name="user", tools=(InteractiveTool(name="askUser", input_schema=QUESTION),))
    boss = Expert(
        key="boss",
        instruction="[[boss]] You see to it.",
        delegates=("hand",),
        skills=(asking, McpStdioSkill(name="travel", command="no-such-program")),
        permissions=Permissions(ask=("appendTextFile",)),
    )
    hand = Expert(key="hand", instruction="[[hand]] You do it.")
    return boss.model_copy(update=changes), hand


def record(bench: Bench, job_id: str = "live") -> JobSummary:
    """Drive the Job without a recording."""
    (bench.workspace / "notes.txt").write_text("a note\n")
    return wait_for(answered(bench.host(SCRIPT, *team(), plugins=(Travel(),)), job_id))


async def answered(host: Host, job_id: str) -> JobSummary:
    """Drive the Job and answer everything it asks."""
    job = await host.run("boss", "Do all of it", job_id=job_id)
    while job.asking is not None:
        said = "yes" if job.asking.call_digest else '{"city": "Rome"}' if job.asking.requested_schema else "green"
        job = await host.answer(said, question_id=job.asking.id, by=ANN)
    return job


def player(
    recording: Path,
    workspace: Path,
    storage: str,
    *experts: Expert,
    project: Project | None = None,
    **overrides: object,
) -> Host:
    """Return a Host that plays a recording, with no script, no key and only the base skill."""
    given = Overrides(**{"recording": str(recording), "open": True, **overrides})  # type: ignore[arg-type]
    project = project or project_of(*(experts or team()))
    host = Host(project, workspace=workspace, storage=storage, env={"PATH": "/usr/bin:/bin"}, overrides=given)
    OPENED.append(host)
    return host


def setting(**values: object) -> ProviderSetting:
    return ProviderSetting.model_validate({"providerName": "recorded", "setting": values})


_VOLATILE = frozenset(
    (
        "id", "timestamp", "jobId", "runId", "checkpointId", "durationMs", "by", "requestDigest", "toolsDigest",
        "instruction", "provider", "model", "providerSettings", "overrides", "expert", "hash", "callDigest",
        "definition", "definitions",  # of tools: a played Job opens no server
    )
)  # fmt: skip


def facts(host: Host, job_id: str) -> dict[str, list[str]]:
    """Return the events of each Run without ids and times; results of parallel calls are sorted."""

    async def read() -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for run in (await host.jobs.runs(job_id)).runs:
            events = [line.event for line in await host.events(run.id, job_id=job_id)]
            found[run.id.removeprefix(f"{job_id}-")] = sorted(
                json.dumps(_plain(json.loads(event.to_json())), sort_keys=True).replace(f"{job_id}-", "JOB-")
                for event in events
            )
        return found

    return wait_for(read())


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items() if name not in _VOLATILE}
    return [_plain(one) for one in value] if isinstance(value, list) else value
