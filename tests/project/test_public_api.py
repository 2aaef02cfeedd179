"""What `import perstack` offers is a promise: names and signatures change on purpose only."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hosts import Seen, wait_for

import perstack
import perstack.core.runs.start
from perstack.audit.auditor import Auditor
from perstack.audit.storage_admin import StorageAdmin
from perstack.diagnostics.experts_and_skills import Experts, Skills
from perstack.engine.jobs.jobs import Jobs
from perstack.engine.jobs.reader import JobReader
from perstack.errors import PerstackError
from perstack.posted_texts.posting import PostedTexts
from perstack.recordings.job_exports import JobExports
from perstack.snapshots.job_files import JobFiles
from perstack.testing.scripted import ScriptedProvider, fail, text
from perstack.workers.dispatcher_queue import DispatcherQueue
from perstack.workers.serving import JobServer

NAMES = {
    "__version__",
    "run",
    "run_sync",
    "Attachable",
    "Blob",
    "By",
    "Host",
    "Overrides",
    "JobSummary",
    "ParsedJob",
    "Event",
    "OnEvent",
    "Expert",
    "ToolContext",
    "tool",
    "TextDelta",
    "ToolCall",
    "ToolResult",
    "Question",
    "DelegateStarted",
    "Finished",
    "StreamEvent",
    "JobStream",
    "Project",
    "PerstackError",
    "UsageError",
    "NotFound",
    "NeedsPerson",
    "NotAgreed",
    "NotAllowed",
    "DefinitionError",
    "DispatcherError",
    "CannotServe",
    "ProviderError",
    "MissingCredential",
    "SkillError",
    "PluginError",
    "StorageError",
    "Conflict",
    "Damaged",
}

RUN = (
    "(expert: 'str', query: 'str', *, on_event: 'OnEvent | None' = None, config: 'str | Path | None' = None,"
    " workspace: 'str | Path' = '.', storage: 'str | None' = None, job_id: 'str | None' = None,"
    " attachments: 'Sequence[Attachable]' = (), output: 'type[BaseModel] | None' = None,"
    " env: 'Mapping[str, str] | None' = None, overrides: 'Overrides | None' = None,"
    " plugins: 'Iterable[object]' = (), labels: 'Mapping[str, str] | None' = None) -> 'JobSummary'"
)

HOST = {
    "open": ("config", "workspace", "storage", "env", "overrides", "plugins", "dispatcher", "is_attended"),
    "of": ("experts", "workspace", "storage", "env", "overrides", "plugins", "dispatcher", "is_attended"),
    "close": (),
    "run": ("expert_key", "query", "job_id", "attachments", "output", "on_event", "labels"),
    "run_sync": ("expert_key", "query", "job_id", "attachments", "output", "on_event", "labels"),
    "stream": ("expert_key", "query", "job_id", "attachments", "output", "labels"),
    "submit": ("expert_key", "query", "at", "priority", "attachments", "job_id", "by", "labels"),
    "continue_job": ("expert_key", "query", "job_id", "resume_from", "attachments", "output", "on_event", "labels"),
    "check_agreed": (),
    "answer": (
        "text",
        "changed",
        "job_id",
        "question",
        "question_id",
        "resume_from",
        "signal",
        "by",
        "drive",
        "output",
        "on_event",
    ),
    "inbox": (),
    "programs_note_of": ("summary",),
    "resume": (
        "job_id",
        "max_steps",
        "max_cost",
        "settle",
        "signal",
        "by",
        "drive",
        "on_unsettled",
        "output",
        "on_event",
    ),
    "cancel": ("job_id", "final", "by", "reason"),
    "job": ("job_id",),
    "events": ("run_id", "job_id", "after", "limit"),
    "tell": ("job_id", "text", "run_id", "by"),
    "use": ("project",),
}
EIGHT = {"run", "continue_job", "answer", "resume", "cancel", "submit", "job", "events"}
PARTS = {
    JobReader: {
        "begun_state",
        "checkpoint",
        "checkpoint_path",
        "checkpoints",
        "last_lines",
        "events",
        "complete_id",
        "follow",
        "job",
    }.union(
        ("id_or_latest", "list", "load", "logs", "row", "row_to_delete", "run_state", "runs", "state_at"),
        ("tree", "tree_of", "unsettled", "rows", "watch"),
    ),
    PostedTexts: {"tell", "drop", "standing_texts"},
    JobFiles: {"check_present", "diff", "is_recorded", "plan_rewind", "rewind", "settle_rewind"}.union(
        ("without_rewind", "write_files"),
    ),
    Auditor: {"backtest", "calls", "receipt", "redact", "replay", "verify", "verify_all", "verify_receipt"},
    JobExports: {"document", "export", "record"},
    StorageAdmin: {"check", "copy_to", "disk_usage"},
    DispatcherQueue: {
        "interrupt_queued",
        "ordered",
        "runs_with_orders",
        "requests",
        "requeue_lost",
        "submit",
        "withdraw",
    },
    JobServer: {"serve"},
    Experts: {"all", "get", "check_ready", "run_program", "diagnosis", "providers", "runtimes", "sent", "tools"},
    Skills: {"login", "logout", "install"},
}
PARTS[Jobs] = PARTS[JobReader] | {"run", "submit", "continue_job", "answer", "resume", "resume_before_compaction"}
PARTS[Jobs] |= {"signal", "cancel", "stop_after_step", "delete", "delete_each", "not_retained"}
PARTS[Jobs] |= {"live_questions", "answer_live", "with_context", "in_folder", "on_model"}
PARTS[Experts] |= {"test_command", "model", "models"}

SOURCE = Path(perstack.__file__).read_text()


def test_the_public_names_are_these_and_all_resolve() -> None:
    assert set(perstack.__all__) == NAMES
    assert set(dir(perstack)) == NAMES
    assert all(getattr(perstack, name) is not None for name in NAMES)


def test_type_checkers_are_shown_the_same_names_from_the_same_modules() -> None:
    (block,) = [
        node
        for node in ast.parse(SOURCE).body
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    ]
    shown = {alias.name: one.module for one in block.body for alias in one.names if alias.asname}
    assert shown == perstack._HOME_OF
    assert set(shown) | {"__version__"} == NAMES


def test_every_error_of_the_tree_is_public() -> None:
    import perstack.errors

    tree = {
        name for name, one in vars(perstack.errors).items() if isinstance(one, type) and issubclass(one, PerstackError)
    }
    assert tree <= NAMES


def test_the_signature_of_run_is_pinned() -> None:
    assert str(inspect.signature(perstack.run)) == RUN
    assert str(inspect.signature(perstack.run_sync)) == RUN
    assert inspect.iscoroutinefunction(perstack.run)


def test_type_checkers_are_shown_every_argument_of_run() -> None:
    sources = [Path(module.__file__ or "").read_text() for module in (perstack.host, perstack.core.runs.start)]
    options = {one.name: one for code in sources for one in ast.walk(ast.parse(code)) if isinstance(one, ast.ClassDef)}
    of_methods = {
        perstack.Host.run: ["CallerFields", "NewJobOptions"],
        perstack.Host.continue_job: ["CallerFields", "NewJobOptions", "ContinueOptions"],
        perstack.Host.answer: ["AnswerOptions"],
        perstack.Host.resume: ["ResumeOptions"],
        perstack.Host.submit: ["CallerFields", "SubmitOptions"],
        perstack.run: ["CallerFields", "NewJobOptions", "RunOptions"],
    }
    for method, names in of_methods.items():
        shown = {
            ast.unparse(line.target): ast.unparse(line.annotation)
            for name in names
            for line in options[name].body
            if isinstance(line, ast.AnnAssign)
        }
        taken = inspect.signature(method).parameters.values()
        optional = {one.name: one.annotation for one in taken if one.kind is one.KEYWORD_ONLY and one.name != "output"}
        assert shown == optional


def test_the_methods_of_a_host_and_their_arguments_are_pinned() -> None:
    methods = {
        name: tuple(one for one in inspect.signature(getattr(perstack.Host, name)).parameters if one != "self")
        for name, _ in inspect.getmembers(perstack.Host, callable)
        if not name.startswith("_")
    }
    assert methods == HOST


def test_the_methods_of_its_parts_are_pinned() -> None:
    for part, names in PARTS.items():
        assert {name for name, _ in inspect.getmembers(part, callable) if not name.startswith("_")} == names


def test_the_frequent_methods_take_what_those_of_jobs_take() -> None:
    for name in EIGHT:
        own, of_jobs = (str(inspect.signature(getattr(one, name))) for one in (perstack.Host, Jobs))
        assert _without_addresses(own) == _without_addresses(of_jobs), name


def _without_addresses(signature: str) -> str:
    return re.sub(r"<function \w+\.<lambda> at \w+>", "<lambda>", signature)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Hots'"):
        _ = perstack.Hots


def test_importing_perstack_imports_nothing_heavy() -> None:
    heavy = ("pydantic", "pluggy", "httpx", "click", "asyncio", "perstack.host", "perstack.errors")
    code = f"import sys, perstack; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def _folder(path: Path) -> Path:
    (path / "perstack.toml").write_text('[experts.writer]\ninstruction = "Write."\n')
    return path


def test_run_drives_a_new_job_to_its_result_and_shows_the_events(tmp_path: Path) -> None:
    seen = Seen()
    work = perstack.run(
        "writer",
        "Go.",
        on_event=seen,
        workspace=_folder(tmp_path),
        job_id="mine",
        env={},
        overrides=perstack.Overrides(provider="scripted"),
        plugins=[ScriptedProvider([text("Done.")])],
    )
    job = wait_for(work)
    assert (job.id, job.status, job.text) == ("mine", "completed", "Done.")
    assert seen.types()[0] == "startRun"
    assert seen.types()[-1] == "finishRun"
    assert (tmp_path / "perstack" / "jobs" / "mine" / "job.json").is_file()


def test_run_takes_a_definition_and_a_storage_from_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    config = _folder(tmp_path) / "perstack.toml"
    work = perstack.run(
        "writer",
        "Go.",
        config=config,
        workspace=tmp_path / "here",
        storage="sqlite:jobs.db",
        env={},
        overrides=perstack.Overrides(provider="scripted"),
        plugins=[ScriptedProvider([text("Done.")])],
    )
    assert wait_for(work).status == "completed"
    assert (tmp_path / "here" / "jobs.db").is_file()


def test_a_model_that_fails_stops_the_job_and_raises_nothing(tmp_path: Path) -> None:
    work = perstack.run(
        "writer",
        "Go.",
        workspace=_folder(tmp_path),
        env={},
        overrides=perstack.Overrides(provider="scripted"),
        plugins=[ScriptedProvider([fail(401, "no such key")])],
    )
    job = wait_for(work)
    assert (job.status, job.error) == ("stoppedByError", "no such key")


def test_a_folder_without_a_definition_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(perstack.UsageError, match=r"perstack\.toml"):
        wait_for(perstack.run("writer", "Go.", workspace=tmp_path, env={}))
