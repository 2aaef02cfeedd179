"""Secrets in tool results: hidden from the model and the disk, and available to the tools that need them."""

from __future__ import annotations

import json

import pytest
from approval_jobs import ME, exec_
from hosts import Bench, Seen, expert, project_of, results, wait_for
from secret_texts import SECRETS

from perstack.core.definitions.experts import Expert
from perstack.core.definitions.permissions import Permissions
from perstack.core.definitions.recorded_definition import definition_of, restore_project
from perstack.core.definitions.settings import Overrides
from perstack.core.definitions.skills import McpStdioSkill, Skill, ToolSpec
from perstack.core.messages.messages import TextPart, UserMessage
from perstack.core.runs.facts import Question
from perstack.engine.plugins.secret_vault import NUMBERS_PER_PROCESS, SecretVault
from perstack.host import Host
from perstack.ports.hooks import hookimpl
from perstack.ports.skill import SampleRequest, SkillFactory, SkillSession, ToolCall, ToolResult, Toolset
from perstack.testing.scripted import ScriptedProvider, text, tool, turn

VALUE, OTHER = "Tr0ub4dor-3x", "c0rrect.horse-7"
LOST = "cannot be filled in here"


def masking(key: str = "a", **fields) -> Expert:
    return expert(key, mask_secrets=True, **fields)


def read(path: str):
    return tool("readTextFile", {"path": path})


def write(path: str, words: str):
    return tool("writeTextFile", {"path": path, "text": words})


def keep(bench: Bench, name: str, words: str) -> None:
    (bench.workspace / name).write_text(words)


def hosted(bench: Bench, script, *experts: Expert, rules: Permissions | None = None, **more) -> Host:
    host = bench.host(script, *(experts or (masking(),)), **more)
    host.use(host.project.model_copy(update={"permissions": rules}))
    return host


def on_disk(bench: Bench) -> bytes:
    """Return everything that perstack stores apart from the workspace's own files."""
    files = (path for path in (bench.workspace / "perstack").rglob("*") if path.is_file())
    return b"".join(path.read_bytes() for path in files)


def nowhere(bench: Bench, value: str, seen: Seen, *providers: ScriptedProvider) -> None:
    """Check that neither state, events nor requests contain the value."""
    assert value.encode() not in on_disk(bench)
    assert value.encode() not in b"".join(seen.lines)
    assert all(value not in repr((one.instruction, list(one.messages))) for each in providers for one in each.requests)


class Server(SkillFactory, SkillSession):
    """A skill in place of a server: its tools fail, report, ask and sample, each with a secret."""

    name = "server"

    def __init__(self) -> None:
        self.received: list[object] = []

    def handles(self, definition: Skill) -> bool:
        return isinstance(definition, McpStdioSkill) and definition.name == "server"

    async def open(self, definition: object, context: object) -> Server:
        return self

    async def tools(self) -> Toolset:
        return Toolset(
            tuple(ToolSpec(name=name, effect="readOnly") for name in ("fail", "report", "ask", "sample", "picture"))
        )

    async def call(self, call: ToolCall) -> ToolResult | Question:
        self.received.append(call.args)
        match call.tool_name:
            case "fail":
                raise ValueError(f"no such user: password={VALUE}")
            case "report":
                call.on_progress(f"trying token: {VALUE}")
                return ToolResult.text("reported")
            case "ask" if not call.answers:
                return Question(message=f"Is password: {VALUE} right?", requested_schema={"title": f"token={VALUE}"})
            case "sample":
                assert call.sample is not None
                asked = UserMessage(contents=(TextPart(text=f"password: {VALUE}"),))
                await call.sample(SampleRequest(messages=(asked,), instruction=f"[[sampled]] token: {VALUE}"))
                return ToolResult.text("sampled")
            case "picture":
                await call.blobs.put(b"\x89PNG\r\n\x1a\n" + VALUE.encode())
                return ToolResult.text("drawn")
            case _:
                return ToolResult.text(f"password: {VALUE}")

    async def close(self) -> None:
        pass

    @hookimpl
    def perstack_skills(self) -> list[Server]:
        return [self]


def served() -> Expert:
    return masking().model_copy(update={"skills": (McpStdioSkill(name="server", command="x", sampling=True),)})


def test_the_model_and_the_disk_have_a_placeholder_and_the_tool_receives_the_value(bench: Bench) -> None:
    bench.needs_files("it looks through what is on disk")
    keep(bench, "settings.ini", f"user = ada\npassword = {VALUE}\n")
    provider = ScriptedProvider(
        [
            turn(read("settings.ini"), read("settings.ini")),
            write("out.txt", "Login: [secret:1]!"),
            exec_("echo", "--password=[secret:1]"),
            text("It is [secret:1]."),
        ]
    )
    seen = Seen()
    job = wait_for(hosted(bench, provider).run("a", "q", job_id="job", on_event=seen))
    assert (job.status, job.text) == ("completed", "It is [secret:1].")
    assert (bench.workspace / "out.txt").read_text() == f"Login: {VALUE}!"
    shown = results(seen)
    assert all("password = [secret:1]" in one for one in shown[:2])
    assert json.loads(shown[3])["output"] == "--password=[secret:1]\n"
    nowhere(bench, VALUE, seen, provider)
    assert seen.of("startRun")[0].mask_secrets
    assert "[secret:1]" in provider.requests[0].instruction
    assert {event.secrets for event in seen.of("finishToolCall")} == {1}
    host = hosted(bench, [])
    assert wait_for(host.audit.verify("job")).ok
    assert wait_for(host.audit.replay("job")).ok


def test_without_the_setting_nothing_is_other_than_before(bench: Bench) -> None:
    keep(bench, "settings.ini", f"password = {VALUE}\n")
    seen = Seen()
    wait_for(
        hosted(bench, [read("settings.ini"), write("o", "[secret:1]"), text("ok")], expert("a")).run(
            "a", "q", on_event=seen
        )
    )
    assert VALUE in results(seen)[0]
    assert (bench.workspace / "o").read_text() == "[secret:1]"
    assert not any(b"maskSecrets" in line or b'"secrets"' in line for line in seen.lines)
    assert "[secret:1]" not in seen.of("startRun")[0].instruction


def test_a_long_result_is_masked_in_what_is_shown_and_in_what_is_kept(bench: Bench) -> None:
    bench.needs_files("it looks through what is on disk")
    keep(
        bench,
        "long.txt",
        ("x" * 99 + "\n") * 500 + f"API_KEY={VALUE}\n" + ("y" * 99 + "\n") * 500 + f"token: {OTHER}\n",
    )
    seen = Seen()
    provider = ScriptedProvider([exec_("cat", "long.txt"), text("ok")])
    wait_for(hosted(bench, provider).run("a", "q", job_id="job", on_event=seen))
    kept = json.loads(results(seen)[0])
    assert "token: [secret:" in kept["output"]
    again = ScriptedProvider(
        [text("."), text("."), tool("readTextFile", {"path": kept["outputFile"], "from": 500, "to": 502}), text("ok")]
    )
    wait_for(hosted(bench, again).continue_job("a", "q", job_id="job", on_event=seen))
    assert "API_KEY=[secret:" in results(seen)[-1]
    for value in (VALUE, OTHER):
        nowhere(bench, value, seen, provider, again)
    assert wait_for(hosted(bench, []).audit.verify("job")).ok


def test_parallel_calls_give_one_value_one_number(bench: Bench) -> None:
    keep(bench, "one", f"password: {VALUE}\n")
    keep(bench, "two", f"the same {VALUE} again, token: {OTHER}\n")
    seen = Seen()
    calls = [read(name) for name in ("one", "two", "one", "two")]
    wait_for(
        hosted(bench, [turn(*calls), write("out", "[secret:1] [secret:2]"), text("ok")]).run("a", "q", on_event=seen)
    )
    assert {*(bench.workspace / "out").read_text().split()} == {VALUE, OTHER}
    assert max(event.secrets for event in seen.of("finishToolCall")) == 2


def test_errors_progress_questions_and_samples_are_masked_too(bench: Bench) -> None:
    bench.needs_files("it looks through what is on disk")
    script = {
        "[[a]]": [turn(tool("fail"), tool("report"), tool("picture")), tool("sample"), tool("ask"), text("ok")],
        "[[sampled]]": [text("a sample")],
    }
    provider = ScriptedProvider(script)
    server, seen = Server(), Seen()
    job = wait_for(hosted(bench, provider, served(), plugins=(server,)).run("a", "q", job_id="job", on_event=seen))
    assert job.question is not None
    assert VALUE not in job.question
    assert results(seen, "fail") == ["ValueError: no such user: password=[secret:1]"]
    (progress,) = seen.of("toolProgress")
    assert progress.message.startswith("trying token: [")
    (sampled,) = [request for request in provider.requests if "[[sampled]]" in request.instruction]
    assert sampled.instruction == "[[sampled]] token: [secret:1]"
    nowhere(bench, VALUE, seen, provider)


def test_a_picture_with_a_known_secret_is_an_error_in_its_place(bench: Bench) -> None:
    bench.needs_files("it looks through what is on disk")
    keep(bench, "one", f"password: {VALUE}\n")
    seen = Seen()
    script = [read("one"), tool("picture"), text("ok")]
    wait_for(hosted(bench, script, served(), plugins=(Server(),)).run("a", "q", on_event=seen))
    assert results(seen)[-1].startswith("Not shown: a secret stands in this file")
    nowhere(bench, VALUE, seen)


def test_values_of_the_environment_are_masked_whatever_they_look_like(bench: Bench) -> None:
    host = Host(
        project_of(masking()),
        workspace=bench.workspace,
        storage=bench.storage,
        env={"PATH": "/usr/bin:/bin", "SERVICE_TOKEN": "plain words only"},
        overrides=Overrides(provider="scripted"),
        plugins=[ScriptedProvider([read("one"), text("ok")])],
    )
    keep(bench, "one", "it says plain words only, see\n")
    seen = Seen()
    wait_for(host.run("a", "q", on_event=seen))
    wait_for(host.close())
    assert "it says [secret:1], see" in results(seen)[0]


def test_an_approval_shows_the_placeholder_and_the_approved_call_has_the_value(bench: Bench) -> None:
    keep(bench, "one", f"password: {VALUE}\n")
    script = [read("one"), write("out", "[secret:1]"), text("ok")]
    host = hosted(bench, script, rules=Permissions(ask=("writeTextFile",)))
    seen = Seen()

    async def approved() -> None:
        job = await host.run("a", "q", job_id="job", on_event=seen)
        assert job.asking is not None
        assert job.asking.args == {"path": "out", "text": "[secret:1]"}
        await host.answer("yes", question_id=job.asking.id, by=ME, on_event=seen)

    wait_for(approved())
    assert (bench.workspace / "out").read_text() == VALUE
    assert VALUE.encode() not in b"".join(seen.lines)


def test_after_a_resume_in_another_process_an_older_placeholder_is_refused_and_numbers_continue(bench: Bench) -> None:
    keep(bench, "one", f"password: {VALUE}\n")
    keep(bench, "two", f"password: {OTHER}\n")
    script = [
        read("one"),
        write("out", "[secret:1]"),
        read("two"),
        write("out", "[secret:2]"),
        read("one"),
        write("new", "[secret:3]"),
        text("ok"),
    ]
    rules, seen = Permissions(ask=("writeTextFile(out)",)), Seen()
    job = wait_for(hosted(bench, script, rules=rules).run("a", "q", job_id="job", on_event=seen))
    for _ in range(2):
        assert job.asking is not None
        job = wait_for(
            hosted(bench, script, rules=rules).answer("yes", question_id=job.asking.id, by=ME, on_event=seen)
        )
    assert job.status == "completed", job
    refused, shown, again = results(seen, "writeTextFile")[0], *results(seen, "readTextFile")[1:]
    assert LOST in refused
    assert "[secret:1]" in refused
    assert "password: [secret:2]" in shown
    assert "password: [secret:3]" in again
    assert not (bench.workspace / "out").exists()
    assert (bench.workspace / "new").read_text() == VALUE
    assert wait_for(hosted(bench, []).audit.replay("job")).ok


@pytest.mark.parametrize(
    ("value", "rules"),
    [
        ("s3cret-file.txt", Permissions(deny=("readTextFile(s3cret-file.txt)",))),
        ("sub/../s3cret-file.txt", Permissions(deny=("readTextFile(s3cret-file.txt)",))),
        ("s3cret-file.txt", Permissions(default="deny", allow=("readTextFile(one)", "readTextFile(?secret:1?)"))),
    ],
)
def test_rules_judge_the_value_too_and_the_log_does_not_have_it(bench: Bench, value: str, rules: Permissions) -> None:
    keep(bench, "one", f"password: {value}\n")
    keep(bench, "s3cret-file.txt", "not to be read\n")
    seen = Seen()
    wait_for(
        hosted(bench, [read("one"), read("[secret:1]"), text("ok")], rules=rules).run(
            "a", "q", job_id="j", on_event=seen
        )
    )
    assert "Not run: " in results(seen)[-1]
    assert "not to be read" not in results(seen)[-1]
    assert value.encode() not in b"".join(seen.lines[:1] + seen.lines[2:])
    report = wait_for(hosted(bench, []).audit.replay("j"))
    assert report.ok


@pytest.mark.parametrize(
    "value",
    ["x; touch pwned", "x$(touch pwned)", "x\\ntouch pwned", "x`touch pwned`", "' ; touch pwned '", "a || touch pwned"],
)
@pytest.mark.parametrize("bench", ["file:perstack"], indirect=True)
@pytest.mark.parametrize(
    "line", ["[secret:1]", "echo [secret:1]", "echo '[secret:1]'", 'echo "[secret:1]"', "[secret:1] x"]
)
def test_a_value_never_becomes_a_command(bench: Bench, value: str, line: str) -> None:
    keep(bench, "one", json.dumps({"password": value.replace("\\n", "\n")}))
    rules = Permissions(default="deny", allow=("readTextFile", "exec(echo *)"))
    for held in (rules, None):
        seen = Seen()
        script = [read("one"), exec_("sh", "-c", line), exec_("env", f"X={line}", "sh", "-c", line), text("ok")]
        wait_for(hosted(bench, script, rules=held).run("a", "q", on_event=seen))
        assert "[secret:1]" in results(seen)[0], results(seen)[0]
        assert not (bench.workspace / "pwned").exists()
        assert all("Not run: " in result for result in results(seen, "exec"))


def test_a_value_may_be_a_whole_argument_or_a_variable_whatever_it_is(bench: Bench) -> None:
    value = "x; echo 'y' $(z)"
    keep(bench, "one", json.dumps({"password": value}))
    variable = tool("exec", {"command": "sh", "args": ["-c", 'printf %s "$P" > out'], "env": {"P": "[secret:1]"}})
    seen = Seen()
    wait_for(
        hosted(bench, [read("one"), exec_("printf", "%s", "[secret:1]"), variable, text("ok")]).run(
            "a", "q", on_event=seen
        )
    )
    assert json.loads(results(seen)[1])["output"] == "[secret:1]"
    assert (bench.workspace / "out").read_text() == value


@pytest.mark.parametrize("own", [None, False, True])
def test_a_delegate_masks_as_well_and_uses_the_same_placeholders(bench: Bench, own: bool | None) -> None:
    keep(bench, "one", f"password: {VALUE}\n")
    script = {
        "[[boss]]": [read("one"), tool("hand", {"query": "use [secret:1]"}), write("b", "[secret:2]"), text("done")],
        "[[hand]]": [write("h", "[secret:1]"), exec_("echo", f"token={OTHER}"), text("it is [secret:2]")],
    }
    seen = Seen()
    team = (masking("boss", delegates=("hand",)), expert("hand", mask_secrets=own))
    wait_for(hosted(bench, script, *team).run("boss", "q", on_event=seen))
    assert (bench.workspace / "h").read_text() == VALUE
    assert (bench.workspace / "b").read_text() == OTHER
    assert [event.mask_secrets for event in seen.of("startRun")] == [True, True]


def test_the_nearest_setting_counts_for_the_expert_that_a_person_starts(bench: Bench) -> None:
    keep(bench, "one", f"password: {VALUE}\n")
    for of_project, own, masks in ((True, None, True), (True, False, False), (False, True, True), (None, None, False)):
        host = bench.host([read("one"), text("ok")], expert("a", mask_secrets=own))
        host.use(host.project.model_copy(update={"mask_secrets": of_project}))
        seen = Seen()
        wait_for(host.run("a", "q", on_event=seen))
        assert (VALUE not in results(seen)[0]) is masks
        recorded = definition_of(host.project, host.project.experts["a"], Overrides())
        assert restore_project(recorded, project_of()).mask_secrets is of_project


def test_a_continued_run_masks_when_the_one_before_did(bench: Bench) -> None:
    keep(bench, "one", f"password: {VALUE}\n")
    wait_for(hosted(bench, [text("ok")]).run("a", "q", job_id="job"))
    seen = Seen()
    wait_for(
        hosted(bench, [text("ok"), read("one"), text("ok")], expert("a")).continue_job(
            "a", "q", job_id="job", on_event=seen
        )
    )
    assert VALUE not in results(seen)[0]


def test_a_continued_run_of_the_same_process_uses_placeholders_and_another_continues_the_numbers(bench: Bench) -> None:
    keep(bench, "one", f"password: {VALUE}\n")
    keep(bench, "two", f"password: {OTHER}\n")
    first = [read("one"), text("ok")]
    host = hosted(bench, [*first, write("same", "[secret:1]"), text("ok")])
    wait_for(host.run("a", "q", job_id="job"))
    wait_for(host.continue_job("a", "q", job_id="job"))
    assert (bench.workspace / "same").read_text() == VALUE
    seen, more = Seen(), [text("."), text(".")]
    another = hosted(bench, [*first, *more, read("two"), write("other", "[secret:1]"), text("ok")])
    wait_for(another.continue_job("a", "q", job_id="job", on_event=seen))
    assert "password: [secret:2]" in results(seen)[0]
    assert LOST in results(seen)[1]


@pytest.mark.parametrize(("given", "secret"), SECRETS)
def test_what_is_masked_is_filled_in_again_to_the_letter(given: str, secret: str) -> None:
    vault = SecretVault({})
    masked = vault.mask(given)
    assert secret not in masked
    assert vault.mask(masked) == masked
    try:
        value, wanted = json.loads(masked), json.loads(given)
    except json.JSONDecodeError:
        assert vault.fill_args({"text": masked}, None) == {"text": given}
    else:
        filled = vault.fill_args({"value": value}, None)["value"]
        assert str(filled).replace(" ", "") == str(wanted).replace(" ", "")  # JSON in JSON is written without spaces


def test_a_process_that_has_given_all_its_numbers_redacts() -> None:
    vault = SecretVault({})
    vault.continue_after((NUMBERS_PER_PROCESS - 2, 3 * NUMBERS_PER_PROCESS))
    assert vault.mask(f"password: {VALUE}") == f"password: [secret:{NUMBERS_PER_PROCESS - 1}]"
    assert vault.mask(f"password: {OTHER}") == "password: [redacted]"
    apart = SecretVault({})
    apart.continue_after((7,), block=4)
    assert apart.mask(f"password: {OTHER}") == f"password: [secret:{4 * NUMBERS_PER_PROCESS + 1}]"
