"""The table of what features offer to the kernel and to skills. Each is imported when it is asked for first.

The table itself is made when the first part is asked for: a list of Jobs needs none.

A module is offered as an object: its functions are the methods of the part's protocol.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from perstack.ports.parts import Offer, Parts

if TYPE_CHECKING:
    from perstack.core.base.ids import Owner
    from perstack.core.definitions.experts import Expert
    from perstack.core.definitions.models import ProviderLimits
    from perstack.core.runs.commands import Compact, Shrink
    from perstack.core.runs.state import Run
    from perstack.engine.context.host_setup import HostSetup, SetupSource
    from perstack.engine.context.protection import RunFiles
    from perstack.engine.jobs.job_queue_protocol import JobQueue
    from perstack.engine.jobs.queueing_protocol import Queueing
    from perstack.engine.jobs.reader import JobReader
    from perstack.engine.jobs.recorded_answers_protocol import RecordedAnswers
    from perstack.engine.jobs.runner import JobRunner, Lease
    from perstack.engine.log.snapshot_protocol import SnapshotRecorder
    from perstack.engine.plugins.knowledge import OpenLibrary
    from perstack.engine.plugins.providers_and_prices import OnWait, Turns
    from perstack.engine.plugins.tool_catalogue import OfferedTool
    from perstack.engine.plugins.trust_checks import ToolLock
    from perstack.engine.runs.input_protocols import Attachable, Media, StoreAttachments, TextInbox
    from perstack.engine.runs.job_drive import RunDrive
    from perstack.engine.runs.playback_protocol import Playback
    from perstack.engine.runs.remote_delegates_protocol import RemoteDelegation
    from perstack.ports.provider import Provider
    from perstack.ports.storage import Storage
    from perstack.tasks.memory import TaskMemory


def parts_of_features(tasks: Callable[[], TaskMemory]) -> Parts:
    """Return the parts of a Host with these tasks."""
    return Parts((), _parts_of_a_start, lambda: _parts_for_runs(tasks))


def _parts_of_a_start() -> tuple[Offer, ...]:
    from perstack.engine.context.protection import RUN_FILES
    from perstack.engine.jobs.job_queue_protocol import JOB_QUEUE
    from perstack.engine.jobs.queueing_protocol import QUEUEING
    from perstack.engine.jobs.recorded_answers_protocol import RECORDED_ANSWERS
    from perstack.engine.jobs.runner import WAITING_COMMANDS, WORKSPACE_LEASE
    from perstack.engine.log.snapshot_protocol import SNAPSHOTS
    from perstack.engine.plugins.knowledge import LIBRARY
    from perstack.engine.plugins.providers_and_prices import PACING
    from perstack.engine.plugins.trust_checks import TOOL_LOCKS
    from perstack.engine.runs.input_protocols import ATTACHMENTS, MEDIA, TEXT_INBOX
    from perstack.engine.runs.playback_protocol import PLAYBACK
    from perstack.engine.runs.remote_delegates_protocol import REMOTE

    return (
        LIBRARY.offer(_skill_library),
        PLAYBACK.offer(_playback),
        RECORDED_ANSWERS.offer(_recorded_answers),
        SNAPSHOTS.offer(_snapshots),
        WORKSPACE_LEASE.offer(_workspace_lease),
        WAITING_COMMANDS.offer(_waiting_commands),
        JOB_QUEUE.offer(_job_queue),
        QUEUEING.offer(_queueing),
        REMOTE.offer(_remote_delegation),
        RUN_FILES.offer(_run_files),
        TOOL_LOCKS.offer(_tool_locks),
        PACING.offer(_pacing),
        ATTACHMENTS.offer(_attachments),
        MEDIA.offer(_media),
        TEXT_INBOX.offer(_text_inbox),
    )


def _parts_for_runs(tasks: Callable[[], TaskMemory]) -> tuple[Offer, ...]:
    from perstack.engine.plugins.job_skills import CONTEXT_TOOLS
    from perstack.engine.runs.loop import MAKE_ROOM
    from perstack.engine.runs.run_skills import EXPERT_OF_FILE
    from perstack.tasks.memory import TASK_MEMORY

    return (
        CONTEXT_TOOLS.offer(_context_tools),
        MAKE_ROOM.offer(_make_room),
        TASK_MEMORY.offer(tasks),
        EXPERT_OF_FILE.offer(_expert_of_file),
    )


def _expert_of_file() -> Callable[[HostSetup, str, str], Expert]:
    from perstack.definition_files import expert_of_file

    return expert_of_file


def _skill_library() -> OpenLibrary:
    from perstack.agent_skills.library import SkillLibrary

    return SkillLibrary


def _playback() -> Playback:
    from perstack.recordings import run_playback as playback

    return playback


def _recorded_answers() -> RecordedAnswers:
    from perstack.recordings import answer_playback as answers

    return answers


def _snapshots() -> Callable[[Storage, str, Path, Sequence[Path]], SnapshotRecorder]:
    from perstack.snapshots.job_snapshots import JobSnapshots

    return JobSnapshots


def _workspace_lease() -> Callable[[SetupSource, JobReader, Lease], AbstractAsyncContextManager[None]]:
    from perstack.snapshots.job_files import workspace_lease

    return workspace_lease


def _waiting_commands() -> Callable[[Storage], Awaitable[tuple[tuple[str, ...], ...]]]:
    from perstack.tasks.waiting_commands import waiting_commands

    return waiting_commands


def _job_queue() -> Callable[[SetupSource, JobReader, JobRunner], JobQueue]:
    from perstack.workers.dispatcher_queue import DispatcherQueue

    return DispatcherQueue


def _queueing() -> Queueing:
    from perstack.workers import queued_definition

    return queued_definition


def _remote_delegation() -> RemoteDelegation:
    from perstack.workers import remote_delegates

    return remote_delegates


def _run_files() -> RunFiles:
    from perstack.trust import run_files as protection

    return protection


def _tool_locks() -> Callable[[str | None], ToolLock]:
    from perstack.lockfile.lock import lock_of

    return lock_of


def _context_tools() -> Callable[[Run, Storage], tuple[OfferedTool, ...]]:
    from perstack.compaction.context_tools import context_tools

    return context_tools


def _make_room() -> Callable[[RunDrive, Shrink | Compact], Awaitable[None]]:
    from perstack.compaction.make_room import make_room

    return make_room


def _pacing() -> Callable[[Provider, str, ProviderLimits | None, OnWait], Turns]:
    from perstack.pacing.endpoint_queue import ticket_for

    return ticket_for


def _attachments() -> Callable[[HostSetup, str, Sequence[Attachable]], Awaitable[StoreAttachments]]:
    from perstack.media.attachments import read_supported

    return read_supported


def _media() -> Media:
    from perstack.media import fitting

    return fitting


def _text_inbox() -> Callable[[Storage], TextInbox]:
    from perstack.posted_texts.mailboxes import Mailboxes

    return Mailboxes


async def describe_waiting_work(storage: Storage, owners: Collection[Owner] | None = None) -> list[str]:
    """Return the page of the work that waits in a state, or for these owners in it."""
    from perstack.diagnostics.waiting_work import waiting_work

    return await waiting_work(storage, owners)
