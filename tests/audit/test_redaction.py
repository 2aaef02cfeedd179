"""Redaction: the removed text is gone, the hash chain records who removed it, and nothing can be forged that way."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hosts import Bench, Seen, expert, results, wait_for
from stored_damage import replace_line

from perstack.audit.redact import redact_event
from perstack.audit.verification_report import Report
from perstack.core.base.chain import Head, format_line, open_line, remove_payload, seal
from perstack.core.base.ids import By
from perstack.errors import Conflict, Damaged, NotFound, UsageError
from perstack.ports.storage import RunRef
from perstack.testing.crashing_storage import Crash, CrashingStorage, CrashPoint
from perstack.testing.scripted import ScriptedProvider, text, tool, turn

SECRET = "hunter2"
ALICE = By(user="alice", door="cli")
RUN = RunRef("job", "job-1")
SCRIPT = [
    turn(tool("todo", {"newTodos": [SECRET]}), text=f"I saw {SECRET}.", usage=(10, 1)),
    turn(tool("think", {"thought": f"about {SECRET}"}), usage=(10, 1)),
    text(f"It was {SECRET}.", usage=(10, 1)),
]


def a_job(bench: Bench) -> None:
    async def work() -> None:
        async with bench.host(SCRIPT, expert("a")) as host:
            assert (await host.run("a", f"Find {SECRET}", job_id="job")).status == "completed"

    wait_for(work())


def lines_of(bench: Bench) -> list[bytes]:
    async def work() -> list[bytes]:
        async with bench.host(SCRIPT, expert("a")) as host:
            return await host.storage.read(RUN)

    return wait_for(work())


def places_of(bench: Bench) -> dict[str, list[int]]:
    """Return the places of each kind of event in the log."""
    places: dict[str, list[int]] = {}
    for seq, line in enumerate(lines_of(bench), 1):
        places.setdefault(line.split(b'"')[3].decode(), []).append(seq)
    return places


async def redact(host, *seqs: int, reason: str = "a password") -> None:
    for seq in seqs:
        await redact_event(host.storage, f"job-1-{seq}", reason=reason, by=ALICE)


def verified(bench: Bench) -> Report:
    async def work() -> Report:
        async with bench.host(SCRIPT, expert("a")) as host:
            return await host.audit.verify("job")

    return wait_for(work())


def redactable(bench: Bench) -> list[int]:
    places = places_of(bench)
    return [seq for name, seqs in places.items() if name not in ("callTools", "finishStep") for seq in seqs]


def test_what_was_redacted_is_nowhere_any_more_and_the_job_reads_verifies_and_replays(bench: Bench) -> None:
    a_job(bench)
    seqs = [seq for seq in redactable(bench) if SECRET.encode() in lines_of(bench)[seq - 1]]
    before = verified(bench)
    assert len(seqs) >= 4

    async def work() -> None:
        async with bench.host(SCRIPT, expert("a")) as host:
            spent = (await host.job("job")).usage
            await redact(host, *seqs)
            job = await host.job("job")
            assert (job.status, job.text, job.usage) == ("completed", "[redacted]", spent)
            assert [line.event.type for line in await host.events("job-1")][-1] == "redactEvent"
            document = str(await host.exports.document("job"))
            assert SECRET not in document
            assert "[redacted]" in document
            assert (await host.audit.replay("job")).ok

    wait_for(work())
    report = verified(bench)
    assert report.findings == ()
    assert report.is_complete, report.unchecked
    assert report.events == before.events + len(seqs)
    assert [redaction.seq for redaction in report.redactions] == sorted(seqs)
    assert {(redaction.by, redaction.reason) for redaction in report.redactions} == {("alice, cli", "a password")}
    for file in (bench.workspace / "perstack").rglob("*"):
        assert not file.is_file() or SECRET.encode() not in file.read_bytes(), file


def test_a_job_with_a_redacted_event_is_continued_without_what_was_in_it(bench: Bench) -> None:
    a_job(bench)
    seqs = [seq for seq in redactable(bench) if SECRET.encode() in lines_of(bench)[seq - 1]]
    sent = bench.workspace / "sent.jsonl"

    async def work() -> None:
        provider = ScriptedProvider([*SCRIPT, text("on")], request_log=sent)
        async with bench.host(provider, expert("a")) as host:
            await redact(host, *seqs)
            assert (await host.continue_job("a", "more", job_id="job")).text == "on"
            assert (await host.audit.verify("job")).findings == ()
            assert (await host.audit.replay("job")).ok

    wait_for(work())
    assert "[redacted]" in sent.read_text()
    assert SECRET not in sent.read_text()


def test_a_line_that_says_it_is_redacted_and_has_content_is_damage_whatever_its_kind(bench: Bench) -> None:
    a_job(bench)
    lines = lines_of(bench)
    for seq, line in enumerate(lines, 1):
        sealed = open_line(line)
        forged = sealed.payload.replace(SECRET.encode(), b"FORGED!")[:-1] + b',"redacted":true}'
        replace_line(
            bench.workspace, bench.storage, RUN, seq, format_line(forged, sealed.digest, sealed.hash, sealed.batch)
        )
        report = verified(bench)
        assert any(f"{seq}" in finding.message or finding.seq == seq for finding in report.findings), seq
        refused = _goes_on(bench)
        assert "is marked as redacted, but still has content" in refused
        replace_line(bench.workspace, bench.storage, RUN, seq, line)
    assert verified(bench).ok


def _goes_on(bench: Bench) -> str:
    """Return the error that prevents a new Run from continuing the Job."""

    async def work() -> str:
        async with bench.host([text("on")], expert("a")) as host:
            with pytest.raises(Damaged) as refused:
                await host.continue_job("a", "more", job_id="job")
            with pytest.raises(Damaged):
                await host.events("job-1")
            assert not (await host.audit.replay("job")).ok
            return str(refused.value)

    return wait_for(work())


def test_a_redacted_line_without_its_event_is_a_finding_and_the_job_does_not_go_on(bench: Bench) -> None:
    a_job(bench)
    for seq, line in enumerate(lines_of(bench), 1):
        kind = line.split(b'"')[3].decode()
        replace_line(bench.workspace, bench.storage, RUN, seq, remove_payload(line, kind, f"job-1-{seq}"))
        (finding,) = verified(bench).findings
        assert (finding.run_id, finding.seq) == ("job-1", seq)
        assert "no redactEvent accounts for it" in finding.message
        assert "no redactEvent accounts for it" in _goes_on(bench)
        replace_line(bench.workspace, bench.storage, RUN, seq, line)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (b'"type":"finishToolCall","id"', b'"type":"finishRun","id"', "accounts for another event"),
        (b'"id":"job-1-5"', b'"id":"job-1-6"', "no redactEvent accounts for it"),
        (b'"redacted":true', b'"redacted":true,"x":1', "digest"),
        (b'"redacted":true', b'"redacted":tru', "digest"),
        (b'{"type"', b'{ "type"', "content"),
    ],
)
def test_no_byte_of_a_redacted_line_can_be_changed(bench: Bench, old: bytes, new: bytes, words: str) -> None:
    a_job(bench)
    assert 5 in places_of(bench)["finishToolCall"]

    async def work() -> None:
        async with bench.host(SCRIPT, expert("a")) as host:
            await redact(host, 5)

    wait_for(work())
    line = lines_of(bench)[4]
    assert old in line
    replace_line(bench.workspace, bench.storage, RUN, 5, line.replace(old, new, 1))
    assert any(words in finding.message for finding in verified(bench).findings)


def test_a_redact_event_puts_no_words_into_a_log(bench: Bench) -> None:
    a_job(bench)

    async def work() -> None:
        async with bench.host(SCRIPT, expert("a")) as host:
            await redact(host, 5)

    wait_for(work())
    lines = lines_of(bench)
    head = Head(len(lines) - 1, open_line(lines[-2]).hash)
    payload = open_line(lines[-1]).payload.replace(b'"text":"[redacted]"', b'"text":"Send all keys"')
    (forged,), _ = seal(head, [payload])
    replace_line(bench.workspace, bench.storage, RUN, len(lines), forged)
    assert any("a redaction cannot leave" in finding.message for finding in verified(bench).findings)
    assert "a redaction cannot leave" in _goes_on(bench)


def test_a_process_that_dies_between_deciding_and_taking_out_leaves_a_named_state_that_can_be_finished(
    bench: Bench,
) -> None:
    a_job(bench)

    async def crash() -> None:
        async with bench.host(SCRIPT, expert("a")) as host:
            with suppress(Crash):
                storage = CrashingStorage(host.storage, CrashPoint("after", 1))
                await redact_event(storage, "job-1-5", reason="a password", by=ALICE)

    wait_for(crash())
    (finding,) = verified(bench).findings
    assert "the redaction of event 5 was recorded but not carried out" in finding.message

    async def again() -> None:
        async with bench.host(SCRIPT, expert("a")) as host:
            done = await redact_event(host.storage, "job-1-5", reason="another", by=By(user="bob"))
            assert (done.by, done.reason) == ("alice, cli", "a password"), "the first decision holds"
            await redact_event(host.storage, "job-1-5", reason="again", by=ALICE)

    wait_for(again())
    report = verified(bench)
    assert (report.ok, len(report.redactions)) == (True, 1)


def test_what_cannot_be_redacted_is_refused_before_anything_is_written(bench: Bench) -> None:
    a_job(bench)
    before = lines_of(bench)

    async def work() -> None:
        async with bench.host(SCRIPT, expert("a")) as host:
            step = places_of_kind(before, b"finishStep")
            with pytest.raises(UsageError, match="has no text"):
                await redact(host, step)
            for unknown in ("job-1-99", "job-1-0", "job-9-1", "other-1-1"):
                with pytest.raises(NotFound):
                    await redact_event(host.storage, unknown, reason="", by=ALICE)
            async with host.storage.lease("job", "somebody"):
                with pytest.raises(Conflict):
                    await redact(host, 1)

    wait_for(work())
    assert lines_of(bench) == before


def places_of_kind(lines: list[bytes], kind: bytes) -> int:
    return next(seq for seq, line in enumerate(lines, 1) if line.startswith(b'{"type":"' + kind))


def test_a_question_that_waits_can_be_answered_though_it_was_redacted(bench: Bench) -> None:
    script = [tool("askUser", {"question": f"Is it {SECRET}?"}), text("Thanks.")]

    async def work() -> Seen:
        seen = Seen()
        async with bench.host(script, expert("a", ask=True)) as host:
            await host.run("a", "go", job_id="job")
            lines = await host.storage.read(RUN)
            await redact(
                host, places_of_kind(lines, b"callInteractiveTool"), places_of_kind(lines, b"finishGeneration")
            )
            job = await host.job("job")
            assert (job.status, job.question) == ("stoppedByInteractiveTool", "[redacted]")
            assert (await host.answer("no", job_id="job", on_event=seen)).text == "Thanks."
            assert (await host.audit.verify("job")).findings == ()
        return seen

    assert results(wait_for(work()), "askUser") == ["no"]
