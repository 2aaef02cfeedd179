"""Replace tools by a recording while a Job is driven: results, questions, and skills that are not opened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perstack.core.base.ids import By
from perstack.core.base.usage import Usage
from perstack.core.definitions.skills import CHANGING_TOOLS, DecidedCall, Subject, is_base_skill, with_base_skill
from perstack.core.messages.messages import BlobPart, ResultContent, TextPart
from perstack.core.messages.tool_search import SEARCH_TOOL
from perstack.core.runs.commands import Call
from perstack.core.runs.decide import stamp_for_next_step
from perstack.core.runs.facts import Question
from perstack.core.runs.state import Run
from perstack.dataclass import dataclass
from perstack.engine.log.run_session import RunSession
from perstack.engine.runs.attempts import error_info, record_failure
from perstack.engine.runs.job_drive import RunDrive
from perstack.errors import ProviderError
from perstack.ports.provider import Provider
from perstack.ports.skill import BlobStore, SkillFactory, ToolResult, Toolset
from perstack.posted_texts.model import PostedText, posted_events
from perstack.recordings.model import RecordedFile, SaidApproval
from perstack.recordings.play import AskedCall, Player
from perstack.recordings.recorded_calls import names_and_subjects


@dataclass(frozen=True, slots=True)
class RecordedResult:
    """Recorded result of a call."""

    result: ToolResult | Question
    usage: Usage | None = None


def played_skills(provider: Provider, run: Run) -> Mapping[str, Toolset]:
    """Return the skills of a Run that are not opened because a recording answers for their tools, by name."""
    player = player_of(provider)
    if player is None:
        return {}
    names = (SEARCH_TOOL, *(skill.name for skill in with_base_skill(run.expert.skills) if not is_base_skill(skill)))
    toolsets = {name: player.toolset(run.start.expert_key, name) for name in names}
    return {name: Toolset(specs) for name, specs in toolsets.items() if specs is not None}


async def played_results(run_drive: RunDrive, calls: Sequence[Call]) -> Mapping[str, RecordedResult] | None:
    """Return the recorded results of these calls, by id, without calls that are really run.

    Returns None, and fails the Run, if one is missing from the recording.
    """
    session, player = run_drive.session, player_of(run_drive.endpoint.provider)
    if player is None:
        return {}
    base = _base_names(session.run)
    tools = {call.decided.id: run_drive.catalogue.find(call.decided) for call in calls}
    subjects = {key: None if tool is None else tool.spec.subject for key, tool in tools.items()}
    try:
        recorded_calls = {
            call.decided.id: call
            for call in calls
            if not _is_live(player, call.decided, subjects[call.decided.id], base)
        }
        return {
            key: await _play_call(player, session, call, run_drive.drive.blobs) for key, call in recorded_calls.items()
        }
    except ProviderError as error:
        await record_failure(session, error_info(error))
        return None


async def fail_if_results_differ(run_drive: RunDrive) -> bool:
    """Fail the Run if a result of the latest reply differs from the recording; return True if one does."""
    session, player, run = run_drive.session, player_of(run_drive.endpoint.provider), run_drive.session.run
    if player is None:
        return False
    try:
        player.check_results(session.place, run.step, {key: call.result for key, call in run.calls.items()})
    except ProviderError as error:
        await record_failure(session, error_info(error))
        return True
    return False


def has_recorded_decision(run_drive: RunDrive, call: Call) -> bool:
    """Return True if the recording has a person's decision about a call, and the caller named the recording."""
    session, player = run_drive.session, player_of(run_drive.endpoint.provider)
    return (
        player is not None
        and run_drive.drive.setup.overrides.names_recording
        and player.answer_to(session.place, call.decided.id, session.run.step, SaidApproval) is not None
    )


def is_last_step(run_drive: RunDrive, step: int) -> bool:
    """Return whether the recorded Run has no reply after this step, so that a cut-off reply was not continued."""
    player = player_of(run_drive.endpoint.provider)
    return player is not None and player.is_last_step(run_drive.session.place, step)


def take_recorded_texts(run_drive: RunDrive) -> bool:
    """Record the texts that people posted before the next generation of the recorded Run; return False without any."""
    session, player, run = run_drive.session, player_of(run_drive.endpoint.provider), run_drive.session.run
    if player is None:
        return False
    by, step = By(door="recording"), stamp_for_next_step(run, session.stamp)["step_number"]
    texts = (
        PostedText(id=f"recording-{step}-{number}", timestamp=0, by=by, text=text)
        for number, text in enumerate(player.texts_before(session.place, step), 1)
    )
    told = posted_events(run, tuple(texts), run.taken_posts, session.stamp)
    session.record_all(told)
    return bool(told)


def played_calls(provider: Provider, run: Run, factories: Sequence[SkillFactory]) -> list[Call]:
    """Return the open calls of a Run that a recording answers."""
    player = player_of(provider)
    if player is None:
        return []
    base, subjects = _base_names(run), names_and_subjects(factories, run.expert)

    def is_live(decided: DecidedCall) -> bool:
        _, subject = subjects.get((decided.skill_name, decided.tool_name), ("", None))
        return _is_live(player, decided, subject, base)

    return [call for call in run.open_calls if call.decided.kind == "tool" and not is_live(call.decided)]


def _base_names(run: Run) -> set[str]:
    return {skill.name for skill in with_base_skill(run.start.expert.skills) if is_base_skill(skill)}


def _is_live(player: Player, decided: DecidedCall, subject: Subject | None, base: set[str]) -> bool:
    starts_program = subject is not None and bool(subject.program or subject.script)
    if decided.skill_name in base and decided.tool_name in CHANGING_TOOLS:
        return True  # it changes only the Run, and a skill that it adds is played
    changes_files = decided.skill_name in base and decided.effect != "readOnly" and not starts_program
    return player.tools.is_live(decided.skill_name, decided.tool_name, changes_files=changes_files)


async def _play_call(player: Player, session: RunSession, call: Call, blobs: BlobStore) -> RecordedResult:
    place, step = session.place, session.run.step
    args, changed = (call.part.args, None) if call.asked_args is None else (call.asked_args, call.part.args)
    asked_call = AskedCall(
        place, step, call.decided.id, call.part.tool_name, call.decided.skill_name, args, changed=changed
    )
    said_form = player.question(asked_call, len(call.answers))
    if said_form is not None:
        return RecordedResult(Question(message=said_form.question, requested_schema=said_form.requested_schema))
    recorded = player.result(asked_call)
    contents: list[ResultContent] = []
    for part in recorded.result or ():
        if isinstance(part, RecordedFile):
            await blobs.put(player.file(part.blob))
            contents.append(BlobPart(sha256=part.blob, mime_type=part.mime_type, size=part.size, name=part.name))
        else:
            contents.append(TextPart(text=part.text))
    return RecordedResult(ToolResult(tuple(contents), recorded.failed), recorded.usage)


def player_of(provider: Provider) -> Player | None:
    """Return the player of a provider that plays a recording; None for a provider that reaches a model."""
    return provider.player if isinstance(provider.player, Player) else None
