"""Adaptations of one Run of a Job hold for its other Runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256

import pytest
from hosts import Bench, Seen, crashing, expert, sampled, until_it_crashes, wait_for
from long_runs import SmallModel, is_summary
from pictures import picture

from perstack.core.definitions.skills import McpStdioSkill, ToolSpec
from perstack.core.messages.adaptations import Adaptation
from perstack.core.messages.media import MediaLimits
from perstack.core.messages.messages import BlobPart, UserMessage, blobs_of
from perstack.errors import ProviderError, UsageError
from perstack.ports.hooks import hookimpl
from perstack.ports.provider import Generation, GenerationRequest
from perstack.ports.skill import SampleRequest, SkillFactory, SkillSession, ToolCall, ToolResult, Toolset
from perstack.testing.crashing_storage import crash_points
from perstack.testing.scripted import ScriptedProvider, ScriptLike, TurnLike, text, tool, turn

PICTURE, WIDE = picture("PNG"), picture("PNG", (2_500, 9))
IMAGE = sha256(PICTURE).hexdigest()
FIELD = Adaptation(part="field", form="omitted", name="top_p")
PLAIN = Adaptation(part="tool", form="plain", name="show")
TOLD = Adaptation(part="media", form="replaced", name=IMAGE, text="[image removed]")
CROWDING = TOLD.model_copy(update={"shared_limit": True})
UNSIGNED = Adaptation(part="thinking", form="omitted")


class Strict(ScriptedProvider):
    """An endpoint that refuses each part of `needed` that a request has and that is not adapted."""

    def __init__(self, script: ScriptLike, *needed: Adaptation) -> None:
        super().__init__(script)
        self.needed = needed
        self.refused: list[str] = []  # the Run and the part of each refusal

    async def generate(self, request: GenerationRequest, on_delta) -> Generation:
        if missing := self.missing(request):
            self.refused.append(f"{request.run_id} {missing[0].part}")
            raise ProviderError("not so", name="BadRequest", status_code=400)
        return await super().generate(request, on_delta)

    def adapt(self, request: GenerationRequest, error: ProviderError) -> Sequence[Adaptation]:
        return self.missing(request)[:1]

    def missing(self, request: GenerationRequest) -> list[Adaptation]:
        known = {(item.part, item.form, item.name) for item in request.adaptations}
        return [one for one in self.needed if (one.part, one.form, one.name) not in known and _has_part(one, request)]


def _has_part(item: Adaptation, request: GenerationRequest) -> bool:
    if item.part == "tool":
        return any(spec.name == item.name for spec in request.tools)
    sent = {part.sha256 for message in request.messages for part in blobs_of(message)}
    return item.part != "media" or item.name in sent


class Showing(SkillFactory, SkillSession):
    """A skill whose tool shows a picture, and is described by the skill's command."""

    name = "showing"

    def __init__(self, description: str = "") -> None:
        self.description = description

    def handles(self, definition) -> bool:
        return isinstance(definition, McpStdioSkill) and definition.name == "showing"

    async def open(self, definition, context) -> SkillSession:
        return Showing(definition.command)

    async def tools(self) -> Toolset:
        return Toolset((ToolSpec(name="show", description=self.description, effect="readOnly"),))

    async def call(self, call: ToolCall) -> ToolResult:
        part = BlobPart(sha256=await call.blobs.put(PICTURE), mime_type="image/png", size=len(PICTURE))
        return ToolResult((part,))

    async def close(self) -> None:
        pass

    @hookimpl
    def perstack_skills(self):
        return [self]


def shows(key: str, command: str = "x"):
    return expert(key).model_copy(update={"skills": (McpStdioSkill(name="showing", command=command),)})


BOSS = expert("a", delegates=("b", "c"))
SCRIPT: Mapping[str, Sequence[TurnLike]] = {
    "[[a]]": [tool("b", {"query": "go"}), tool("c", {"query": "go"}), text("done"), text("again")],
    "[[b]]": [tool("show"), text("seen by b")],
    "[[c]]": [tool("show"), text("seen by c")],
}


def delegates_host(bench: Bench, provider: Strict, command: str = "x", **settings):
    return bench.host(provider, BOSS, shows("b"), shows("c", command), plugins=(Showing(),), **settings)


def assert_proved(host, job_id: str) -> None:
    assert wait_for(host.audit.replay(job_id)).findings == ()
    assert wait_for(host.audit.verify(job_id)).findings == ()


def test_a_delegate_is_refused_nothing_that_an_earlier_one_was(bench: Bench) -> None:
    provider, seen = Strict(SCRIPT, FIELD, PLAIN, TOLD, UNSIGNED), Seen()
    host = delegates_host(bench, provider)
    job = wait_for(host.run("a", "q", on_event=seen))
    assert job.text == "done"
    parent, first, second = (event.run_id for event in seen.of("startRun"))
    assert provider.refused == [f"{parent} field", f"{parent} thinking", f"{first} tool", f"{first} media"]
    learned = seen.of("adaptRequest", run=second)
    assert [[item.part for item in event.adaptations] for event in learned] == [
        ["field", "thinking", "tool"],
        ["media"],
    ]
    types = seen.types(second)
    assert types[:3] == ["startRun", "adaptRequest", "startGeneration"], "recorded before anything is sent"
    assert_proved(host, job.id)
    later = delegates_host(bench, provider)
    wait_for(later.continue_job("a", "more", job_id=job.id))
    assert len(provider.refused) == 4
    assert_proved(later, job.id)


@pytest.mark.sweep
def test_a_job_that_is_killed_anywhere_asks_for_no_refusal_twice(bench: Bench) -> None:
    for number, point in enumerate(sampled(crash_points(30))):
        provider, job_id = Strict(SCRIPT, FIELD, PLAIN, TOLD), f"j{number}"
        with until_it_crashes():
            wait_for(delegates_host(bench, provider, wrap=crashing(point)).run("a", "q", job_id=job_id))
        host = delegates_host(bench, provider)
        try:
            status = wait_for(host.job(job_id)).status
        except UsageError:
            continue  # nothing was begun
        if status != "completed":
            assert wait_for(host.resume(job_id)).text == "done"
        assert len(provider.refused) <= 4, "one is repeated if the process died before it was recorded"
        assert_proved(host, job_id)


def test_another_tool_of_the_same_name_is_sent_as_it_is(bench: Bench) -> None:
    provider, seen = Strict(SCRIPT, PLAIN), Seen()
    job = wait_for(delegates_host(bench, provider, command="other").run("a", "q", on_event=seen))
    assert job.text == "done"
    assert len(provider.refused) == 2, "each of the two tools was refused once"


def test_an_image_that_was_left_out_of_a_crowd_is_sent_to_a_run_without_one(bench: Bench) -> None:
    class Crowded(Strict):
        def missing(self, request: GenerationRequest) -> list[Adaptation]:
            return super().missing(request) if request.expert_key == "b" else []

    provider, seen = Crowded(SCRIPT, CROWDING), Seen()
    assert wait_for(delegates_host(bench, provider).run("a", "q", on_event=seen)).text == "done"
    assert len(provider.refused) == 1
    assert [request.adaptations for request in provider.requests if request.expert_key == "c"] == [(), ()]


class Describing(Showing):
    """A skill whose tool asks the model twice about a picture."""

    async def open(self, definition, context) -> SkillSession:
        return self

    async def call(self, call: ToolCall) -> ToolResult:
        assert call.sample is not None
        part = BlobPart(sha256=await call.blobs.put(WIDE), mime_type="image/png", size=len(WIDE), name="wide.png")
        asked = SampleRequest((UserMessage(contents=(part,)),), "[[eye]]", max_tokens=500)
        said = [await call.sample(asked) for _ in range(2)]
        return ToolResult.text(" ".join(one.reply.text for one in said))


def test_an_image_that_a_tool_shows_the_model_is_made_smaller_once_with_one_line(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    class Small(ScriptedProvider):
        def media_limits(self, model: str) -> MediaLimits:
            return MediaLimits(max_side_pixels=2_000)

        def takes(self, model: str, mime_type: str) -> bool:
            return True

    provider, seen = Small({"[[a]]": [tool("show"), text("done")], "[[eye]]": [text("wide"), text("very")]}), Seen()
    one = expert("a").model_copy(update={"skills": (McpStdioSkill(name="showing", command="x", sampling=True),)})
    host = bench.host(provider, one, plugins=(Describing(),))
    job = wait_for(host.run("a", "q", on_event=seen))
    assert job.text == "done"
    (event,) = seen.of("adaptRequest")
    assert event.words.startswith("with the image wide.png as ")
    assert "wide.png" not in capsys.readouterr().err
    sent = [request.adaptations for request in provider.requests if request.purpose == "sample"]
    assert sent == [event.adaptations] * 2
    assert_proved(host, job.id)


@pytest.mark.parametrize("is_other", [False, True], ids=["the Run's model", "another Expert's"])
def test_the_summary_of_a_delegate_is_refused_nothing_that_an_earlier_one_was(bench: Bench, is_other: bool) -> None:
    def work(request: GenerationRequest) -> TurnLike:
        if request.expert_key == "a":
            return SCRIPT["[[a]]"][min(request.step, 3) - 1]
        thought = f"thought {request.step}: {'word ' * 300}"
        return "done" if request.step > 12 else turn(tool("think", {"thought": thought}), usage=(0, 400))

    class StrictSummaries(Strict):
        def missing(self, request: GenerationRequest) -> list[Adaptation]:
            return super().missing(request) if is_summary(request) else []

    window = 8_000
    provider, seen = StrictSummaries(SmallModel(work, window), FIELD), Seen()
    context = {"compaction": {"expert": "notes"}} if is_other else {}
    experts = [BOSS, *(expert(key, context_window=window, **context) for key in ("b", "c"))]
    host = bench.host(provider, *experts, expert("notes", model="other"))
    job = wait_for(host.run("a", "q", on_event=seen))
    assert (job.status, len(provider.refused)) == ("completed", 1)
    runs = {event.run_id for event in seen.of("compactHistory") if event.model}
    assert len(runs) == 2, "both delegates had a summary"
    assert_proved(host, job.id)
