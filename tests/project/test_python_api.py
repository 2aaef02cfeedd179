"""How Python calls the host: arguments, listeners, and calls without an event loop."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from hosts import wait_for

import perstack
from perstack.core.definitions.project import Project
from perstack.core.definitions.settings import Budget
from perstack.core.runs.facts import Todo
from perstack.testing.scripted import ScriptedProvider, text, tool


def test_a_misspelt_setting_of_a_caller_is_an_error_that_names_the_right_one() -> None:
    with pytest.raises(
        perstack.UsageError, match=r"^Overrides: there is no argument `maxcost`; did you mean `max_cost`\?$"
    ):
        perstack.Overrides(maxcost=0.1)


def test_a_misspelt_key_of_a_definition_made_in_python_is_an_error() -> None:
    with pytest.raises(perstack.UsageError, match=r"^Expert: .*`instructions`; did you mean `instruction`\?$"):
        perstack.Expert(key="writer", instruction="Write.", instructions="Write.")
    with pytest.raises(perstack.UsageError, match=r"^Project: .*`exprts`; did you mean `experts`\?$"):
        Project(exprts={})
    with pytest.raises(perstack.UsageError, match=r"available: max_cost, max_tokens, max_time, max_tool_calls$"):
        Budget(zz=1)


def test_a_misspelt_key_of_a_table_in_a_definition_is_an_error() -> None:
    with pytest.raises(perstack.UsageError, match=r"^Expert: there is no argument `budget\.maxcost`"):
        perstack.Expert(key="writer", instruction="Write.", budget={"maxcost": 1})


def test_both_spellings_of_a_field_are_arguments() -> None:
    assert Budget(maxCost=1) == Budget(max_cost=1)
    assert perstack.Overrides(maxCost=1) == perstack.Overrides(max_cost=1)


def test_an_unknown_key_of_a_log_is_ignored() -> None:
    assert Todo.model_validate_json('{"id": 1, "title": "a", "completed": true, "later": 1}').title == "a"
    assert Budget.model_validate({"maxCost": 1, "later": 1}) == Budget(max_cost=1)


def _run(folder: Path, listener: perstack.OnEvent) -> perstack.JobSummary:
    (folder / "perstack.toml").write_text('[experts.writer]\ninstruction = "Write."\n')
    chosen = perstack.Overrides(provider="scripted")
    model = ScriptedProvider([text("Done.")])
    return wait_for(
        perstack.run("writer", "Go.", workspace=folder, env={}, on_event=listener, overrides=chosen, plugins=[model])
    )


def test_a_listener_takes_the_event_alone_or_its_line_too(tmp_path: Path) -> None:
    alone: list[str] = []
    with_line: list[bytes] = []
    _run(tmp_path, lambda event: alone.append(event.type))
    _run(tmp_path, lambda event, line: with_line.append(line))
    assert alone[1] == "startRun"
    assert alone[-1] == "finishRun"
    assert len(alone) == len(with_line)
    assert b"finishRun" in with_line[-1]


def test_a_listener_may_be_a_method_of_a_list(tmp_path: Path) -> None:
    events: list[perstack.Event] = []
    _run(tmp_path, events.append)
    assert events[-1].type == "finishRun"


def test_a_listener_that_takes_no_event_is_an_error_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(
        perstack.UsageError, match=r"^on_event is called with an event, or with an event and its line, but takes \(\)$"
    ):
        _run(tmp_path, lambda: None)
    assert not (tmp_path / "perstack").exists()


def test_a_listener_that_would_have_to_be_awaited_is_an_error_that_names_the_stream(tmp_path: Path) -> None:
    async def listener(event: perstack.Event) -> None:
        raise AssertionError("never awaited")

    class Listener:
        async def __call__(self, event: perstack.Event) -> None:
            raise AssertionError("never awaited")

    for one in (listener, Listener()):
        with pytest.raises(perstack.UsageError, match=r"^on_event is called, not awaited: .*`Host\.stream`$"):
            _run(tmp_path, one)
    assert not (tmp_path / "perstack").exists()


def test_a_listener_that_returns_a_coroutine_is_left_out_with_a_notice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(tmp_path, lambda event: asyncio.sleep(0)).status == "completed"
    (line,) = capsys.readouterr().err.splitlines()
    assert "raised TypeError: it returns a coroutine, which nobody awaits; it is not called any more" in line


class _Leaver:
    """Listener that raises `error` at the first event of a type, in a Run of an Expert."""

    def __init__(self, error: BaseException, kind: str, expert_key: str = "a") -> None:
        self.error, self.kind, self.expert_key = error, kind, expert_key

    def __call__(self, event: perstack.Event) -> None:
        if event.type == self.kind and event.expert_key == self.expert_key:
            raise self.error


@pytest.mark.parametrize("error", [SystemExit(7), KeyboardInterrupt(), asyncio.CancelledError()])
@pytest.mark.parametrize(("kind", "key"), [("startRun", "a"), ("callTools", "a"), ("startGeneration", "b")])
def test_a_listener_that_leaves_the_program_interrupts_the_job_which_can_be_resumed(
    kind: str,
    key: str,
    error: BaseException,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    experts = [_expert(delegates=("b",)), _expert(name="b", instruction="[[b]]")]
    model = ScriptedProvider({"a": [tool("b", {"query": "go"}), text("Done.")], "[[b]]": [text("ok", delay_ms=300)]})
    chosen = perstack.Overrides(provider="scripted")
    host = perstack.Host.of(experts=experts, workspace=tmp_path, env={}, overrides=chosen, plugins=[model])
    with pytest.raises(type(error)) as raised:
        host.run_sync("a", "Go.", job_id="job", on_event=_Leaver(error, kind, key))
    assert raised.value is error or isinstance(error, asyncio.CancelledError)
    assert wait_for(host.job("job")).status == "stoppedByInterrupt"
    gc.collect()  # asyncio writes of a lost task when it is collected
    assert capfd.readouterr().err == ""
    assert caplog.text == ""
    assert wait_for(host.resume("job")).text == "Done."


def test_what_a_listener_raises_at_the_last_event_leaves_a_completed_job(tmp_path: Path) -> None:
    chosen, model = perstack.Overrides(provider="scripted"), ScriptedProvider([text("Done.")])
    host = perstack.Host.of(experts=[_expert()], workspace=tmp_path, env={}, overrides=chosen, plugins=[model])
    with pytest.raises(SystemExit):
        wait_for(host.run("a", "Go.", job_id="job", on_event=_Leaver(SystemExit(7), "finishRun")))
    assert wait_for(host.job("job")).status == "completed"


def _expert(**changed: object) -> perstack.Expert:
    return perstack.Expert(**{"name": "a", "instruction": "x", **changed})


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: perstack.Overrides(max_cost="x", max_steps=1.5), "`max_steps` must be a whole number; `max_cost`"),
        (lambda: perstack.Overrides(3), "Overrides: `model` must be text or a list"),
        (lambda: _expert(name=3), "Expert: `name` must be text"),
        (lambda: perstack.Expert(name="a"), "Expert: `instruction` is missing"),
        (lambda: _expert(skills=[{"type": "mcpStdioSkill"}]), "Expert: `skills.0.name` is missing"),
        (lambda: perstack.Blob("text"), "Blob: `data` must be bytes, and is str"),
        (lambda: perstack.Blob(b"text", name=3), "Blob: `mime_type` and `name` must be text"),
        (lambda: perstack.By(user=3), "By: `user` must be text"),
        (lambda: perstack.Host.of(experts=["a"]), r"experts\[0\] must be an Expert, and is str: write \[Expert\("),
        (lambda: perstack.Host.of(experts=_expert()), r"experts\[0\] must be an Expert, and is tuple"),
        (lambda: perstack.Host.of(experts=[_expert()], env={"A": 3}), "Host.of: `env` must be a dictionary of texts"),
        (lambda: perstack.Host.of(experts=[_expert()], plugins=[len]), "plugin len, given in Python, has no hook"),
        (lambda: perstack.Host.of(experts=[_expert()], overrides={}), "Host.of: `overrides` must be an Overrides"),
        (lambda: perstack.Host.open(confg="a"), "Host.open: there is no argument `confg`; did you mean `config`"),
        (lambda: perstack.Host.open(config="a\0b"), "Host.open: `config` has a null character, which no path has"),
        (lambda: perstack.Host(3), "Host: `project` must be a Project"),
        (lambda: perstack.run_sync("a", "q", atachments=[]), "run_sync: there is no argument .* `attachments`"),
        (lambda: perstack.run_sync("a", "q", max_steps=3), "run_sync: there is no argument `max_steps`; available: "),
        (lambda: perstack.run_sync("a"), "run_sync: missing a required argument: 'query'"),
        (lambda: wait_for(perstack.run("a", 3)), "run: `query` must be text"),
    ],
)
def test_a_wrong_argument_of_a_public_call_is_one_line_with_its_place(
    call: Callable[[], object], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(perstack.PerstackError, match=words) as error:
        call()
    assert "\n" not in str(error.value)
    assert error.value.__context__ is None, "a traceback shows this error alone"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("method", "args", "named", "words"),
    [
        ("run", ("a", None), {}, "`query` must be text"),
        ("run", ("a", "q"), {"job_id": 3}, "`job_id` must be text"),
        ("run", ("a", "q"), {"labels": {"a": 3}}, "`labels` must be a dictionary of texts"),
        ("run", ("a", "q"), {"on_event": 3}, "`on_event` must be a function"),
        ("stream", ("a", 3), {}, "`query` must be text"),
        ("continue_job", ("a", 3), {}, "`query` must be text"),
        ("answer", ("yes",), {"question": 3}, "`question` must be a Question or text"),
        ("answer", ("yes",), {"by": "ana"}, "`by` must be a By"),
        ("resume", (3,), {}, "`job_id` must be text"),
        ("resume", (), {"max_steps": True}, "`max_steps` must be a whole number"),
        ("resume", (), {"max_stesp": 3}, "there is no argument `max_stesp`; did you mean `max_steps`?"),
        ("submit", ("a", "q"), {"at": "noon"}, "`at` must be a whole number"),
        ("cancel", (3,), {}, "`job_id` must be text"),
        ("job", (3,), {}, "`job_id` must be text"),
        ("events", (3,), {}, "`run_id` must be text"),
    ],
)
def test_a_wrong_argument_of_a_method_of_a_host_is_an_error_before_anything_is_done(
    method: str, args: tuple[object, ...], named: dict[str, object], words: str, tmp_path: Path
) -> None:
    host = perstack.Host.of(experts=[_expert()], workspace=tmp_path, env={})

    async def work() -> None:
        made = getattr(host, method)(*args, **named)
        async for _ in made if method == "stream" else [await made]:
            pass

    with pytest.raises(perstack.UsageError) as error:
        wait_for(work())
    assert str(error.value) == f"Host.{method}: {words}"
    assert not list(tmp_path.iterdir())


def test_a_place_or_a_limit_of_events_below_zero_is_an_error(tmp_path: Path) -> None:
    job = _run(tmp_path, lambda event: None)

    async def work() -> None:
        async with perstack.Host.open(workspace=tmp_path, env={}) as host:
            assert await host.events(job.coordinator_run_id, limit=0) == []
            for given in ({"after": -1}, {"limit": -1}):
                with pytest.raises(perstack.UsageError, match=r"^events: .*: neither may be below 0$"):
                    await host.events(job.coordinator_run_id, **given)

    wait_for(work())


def test_code_that_is_not_async_runs_jobs_one_after_another_with_one_host(tmp_path: Path) -> None:
    (tmp_path / "perstack.toml").write_text('storage = "sqlite:jobs.db"\n[experts.writer]\ninstruction = "Write."\n')
    chosen, model = perstack.Overrides(provider="scripted"), ScriptedProvider([text("Done.")])
    host = perstack.Host.open(workspace=tmp_path, env={}, overrides=chosen, plugins=[model])
    jobs = [host.run_sync("writer", "Go.") for _ in range(2)]
    assert [job.text for job in jobs] == ["Done.", "Done."]
    assert jobs[0].id != jobs[1].id
    with pytest.raises(perstack.UsageError, match="there is no Expert 'wrtier'") as error:
        host.run_sync("wrtier", "Go.")
    assert error.value.__context__ is None, "a traceback shows this error alone"


def test_a_call_of_run_sync_inside_an_event_loop_is_an_error_that_names_run(tmp_path: Path) -> None:
    (tmp_path / "perstack.toml").write_text('[experts.writer]\ninstruction = "Write."\n')

    async def work() -> None:
        perstack.run_sync("writer", "Go.", workspace=tmp_path, env={})

    with pytest.raises(perstack.UsageError, match=r"inside a running event loop: write `await run\(…\)`$"):
        wait_for(work())
    assert not (tmp_path / "perstack").exists()


def test_ctrl_c_is_recorded_as_an_interrupt_and_raised(tmp_path: Path) -> None:
    (tmp_path / "perstack.toml").write_text('[experts.writer]\ninstruction = "Write."\n')
    chosen, model = perstack.Overrides(provider="scripted"), ScriptedProvider([text("late", delay_ms=60_000)])
    host = perstack.Host.open(workspace=tmp_path, env={}, overrides=chosen, plugins=[model])

    def press(event: perstack.Event) -> None:
        if event.type == "startGeneration":
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        host.run_sync("writer", "Go.", job_id="job", on_event=press)
    assert wait_for(host.job("job")).status == "stoppedByInterrupt"
