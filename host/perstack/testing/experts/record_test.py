"""Make a test from an existing Job: its recording, and its result as the expectation."""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import cast

from perstack.core.jobs.summary import JobSummary
from perstack.core.permissions.policy_calls import PolicyCall
from perstack.dataclass import dataclass
from perstack.errors import UsageError
from perstack.expert_tests.models import Expected, ExpectedStatus, ExpertTest, name_problem
from perstack.expert_tests.written_tests import WrittenTest, add_test, read_tests
from perstack.host import Host
from perstack.ports.environment import Environment
from perstack.testing.experts.results import matches_call, status_word
from perstack.testing.experts.run_tests import Bench, contents, drive_and_judge, remove_folder
from perstack.toml_reader.definition_with_includes import DefinitionFile

_MAX_CALLS = 40
_MAX_FILES = 20
_MAX_LINE_CHARS = 200
_SPECIAL = r"([*\\,=()?\[\]])"
_ESCAPED = r"\\\1"


@dataclass(frozen=True, slots=True)
class AddedTest:
    """A test that was added."""

    expert: str
    definition: Path
    recording: Path
    expected: Mapping[str, str | list[str] | Mapping[str, str]]


async def take_test(
    host: Host, job_id: str, name: str, definition: DefinitionFile, env: Environment, fixture: Path | None = None
) -> AddedTest:
    """Record a Job, play it in a fresh folder or a copy of `fixture`, and add a test that expects the result.

    Raises UsageError, and keeps nothing, if playing the recording has another outcome or the name is taken.
    """
    summary = await host.job(job_id)
    project = definition.to_project(strict=False).project
    project.check_broken(summary.expert_key)
    draft = definition.drafts.get(summary.expert_key)
    if draft is None:
        raise UsageError(
            f"Job {summary.id} belongs to Expert `{summary.expert_key}`, which is not in {definition.path}"
        )
    problem = name_problem(name)
    if problem is not None:
        raise UsageError(f"--name {problem}")
    if any(written.expert == summary.expert_key and written.test.name == name for written in read_tests(definition)):
        raise UsageError(f"Expert `{summary.expert_key}` already has a test `{name}`: choose another --name")
    status = _expected_status(summary)
    file = draft.report.source.path
    folder = file.parent.absolute()
    recording = folder / "tests" / f"{_recording_name(summary.expert_key, name)}.json"
    if recording.exists():
        raise UsageError(f"{recording} already exists: choose another --name")
    data = (await host.exports.record(summary.id)).to_bytes()
    test = ExpertTest(
        name=name,
        query=summary.query,
        model=str(recording.relative_to(folder)),
        workspace=None if fixture is None else _relative_to(folder, fixture),
        expect=Expected(status=status),
    )
    recording.parent.mkdir(exist_ok=True)
    with recording.open("xb") as output:
        output.write(data)
    try:
        expected = await _observe(WrittenTest(summary.expert_key, test, str(file), folder), Bench(project, env, Path()))
        fields: dict[str, str | list[str]] = {"name": name, "query": summary.query, "model": test.model or ""}
        if test.workspace is not None:
            fields["workspace"] = test.workspace
        await asyncio.to_thread(add_test, file, summary.expert_key, fields, expected)
    except BaseException:
        recording.unlink(missing_ok=True)
        raise
    return AddedTest(summary.expert_key, file, recording, expected)


async def _observe(written: WrittenTest, bench: Bench) -> dict[str, str | list[str] | Mapping[str, str]]:
    room = await asyncio.to_thread(_make_trial_folder)
    try:
        judged = await drive_and_judge(written, Bench(bench.project, bench.env, room), room / "played", "played")
        if judged.reasons:
            raise UsageError(
                f"the recording cannot be played in a fresh folder: {'; '.join(judged.reasons)}; if it needs files of"
                " the workspace, name a folder that has them with --files"
            )
        expected: dict[str, str | list[str] | Mapping[str, str]] = {"status": written.test.expect.status}
        calls = () if judged.facts is None else judged.facts.calls
        calls_by_rule = {rule_of(policy_call): policy_call for policy_call in calls}
        called = [rule for rule, policy_call in calls_by_rule.items() if matches_call(rule, policy_call)][:_MAX_CALLS]
        if called:
            expected["called"] = called
        files = await asyncio.to_thread(_written_files, room / "played" / "workspace", calls)
        if files:
            expected["files"] = files
        return expected
    finally:
        await asyncio.to_thread(remove_folder, room)


def _make_trial_folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="perstack-test-")).resolve()


def rule_of(policy_call: PolicyCall) -> str:
    """Return a permission rule that matches this call and similar ones: with its paths, without its texts."""
    if policy_call.kind == "delegate":
        return f"delegate/{policy_call.tool}"
    paths = {
        name: names[0] for name, names in policy_call.paths().items() if len(names) == 1 and name in policy_call.args
    }
    patterns = ", ".join(f"{name}={re.sub(_SPECIAL, _ESCAPED, path)}" for name, path in paths.items())
    return f"{policy_call.tool}({patterns})" if patterns else policy_call.tool


def _written_files(workspace: Path, calls: Iterable[PolicyCall]) -> dict[str, str]:
    paths = dict.fromkeys(
        names[0]
        for policy_call in calls
        if policy_call.effect != "readOnly"
        for names in policy_call.paths().values()
        if len(names) == 1
    )
    inner = [path for path in paths if not path.startswith("/") and path != "."][:_MAX_FILES]
    texts = contents(workspace, inner)
    return {path: _first_line(content) for path, content in texts.items() if isinstance(content, str)}


def _first_line(content: str) -> str:
    line = next((line for line in content.splitlines() if line.strip()), "")[:_MAX_LINE_CHARS]
    return line if line.isprintable() else ""


def _expected_status(summary: JobSummary) -> ExpectedStatus:
    if len([run_summary for run_summary in summary.runs if run_summary.delegated_by is None]) > 1:
        raise UsageError(f"Job {summary.id} was continued, but a test has one query: use a Job that was not continued")
    word = status_word(summary.status)
    if word in ("running", "interrupted"):
        raise UsageError(f"Job {summary.id} is {word}: use a Job that has ended")
    return cast("ExpectedStatus", word)


def _recording_name(expert: str, name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._]+", "-", f"{expert}-{name}").strip("-.")[:80] or "test"


def _relative_to(folder: Path, fixture: Path) -> str:
    absolute = fixture.resolve()
    return str(absolute.relative_to(folder.resolve())) if absolute.is_relative_to(folder.resolve()) else str(absolute)
