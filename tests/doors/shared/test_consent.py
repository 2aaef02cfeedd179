"""The page of consent is whole, computed from the call that runs, and offers no yes where it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from perstack.core.base.records import JsonObject
from perstack.core.definitions.exec_grant import EXEC_SUBJECT, subject_of
from perstack.core.definitions.experts import Expert
from perstack.core.definitions.skills import BASE_SKILL, DecidedCall, McpStdioSkill, McpTool, Subject
from perstack.core.runs.open_questions import OpenQuestion
from perstack.doors.shared.consent import FORM, LIST, TERMINAL, page_of
from perstack.doors.shared.question_forms import check_shown_whole, choices_of, form_of
from perstack.engine.permissions.changed_files import content_digest
from perstack.errors import UsageError


def asked(args: JsonObject, *, tool: str = "exec", skill: str = BASE_SKILL, subject: Subject | None = EXEC_SUBJECT):
    return OpenQuestion(
        id="j-1-4",
        run_id="j-1",
        expert_key="a",
        tool_call_id="c",
        tool_name=tool,
        skill_name=skill,
        text=f"a wants to call {tool}, which needs approval ({tool})",
        args=args,
        call_digest="v1:x",
        offers=(tool,),
        subject=subject,
    )


def script(line: str) -> OpenQuestion:
    return asked({"command": "sh", "args": ["-c", line]})


def lines_of(question: OpenQuestion, folder: Path) -> list[str]:
    return page_of(question, folder).lines


def test_equal_commands_are_one_line_with_their_number_and_none_is_left_out(tmp_path: Path) -> None:
    lines = lines_of(script("ls;" * 60 + "touch last"), tmp_path)
    assert lines[-2:] == ["  runs: ls  (60 times)", "  runs: touch last"]
    many = lines_of(script("; ".join(f"echo {number}" for number in range(300))), tmp_path)
    assert many[-300:] == [f"  runs: echo {number}" for number in range(300)]


@pytest.mark.parametrize("where", ["before", "after", "inside"])
def test_what_runs_is_next_to_the_question_however_long_the_arguments_are(tmp_path: Path, where: str) -> None:
    padding = {"note": "x\n" * 20_000}
    call: JsonObject = {"command": "rm", "args": ["-rf", "data"]}
    if where == "inside":
        call = {"command": "sh", "args": ["-c", f"rm -rf data # {'y' * 5_000}"]}
    args = {**padding, **call} if where == "before" else {**call, **padding}
    lines = lines_of(asked(args), tmp_path)
    assert [line for line in lines[-2:] if line.startswith("  runs: rm -rf data")]
    assert sum(line == "    | x" for line in lines) == 19_999  # nothing of them is left out
    assert lines[0] in lines[-3:]  # who asks for what is repeated next to it
    assert all("left out" not in line for line in lines)


@pytest.mark.parametrize(
    "question",
    [
        script("; ".join(f"echo {number}" for number in range(80))),
        script(f"ls; echo {'x' * 6_000}; rm -rf data"),
        asked({"text": "a\n" * 100, "to": "all"}, tool="send", skill="mail", subject=None),
    ],
    ids=["many commands", "a long command", "a long argument"],
)
@pytest.mark.parametrize("room", [FORM, LIST])
def test_what_does_not_fit_offers_only_a_no_and_says_where_it_is_whole(tmp_path: Path, question, room) -> None:
    page = page_of(question, tmp_path)
    fitted = page.fitted(room)
    assert not fitted.is_whole
    assert fitted.text.endswith(
        "not everything is shown here, so it cannot be approved here; to see all of it: perstack answer j-1-4"
    )
    assert len(fitted.text.splitlines()) <= room.lines + 2
    assert page.fitted(TERMINAL) == ("\n".join(page.lines), True)
    form = form_of(question, tmp_path)
    assert list(choices_of(form)) == ["no"]
    for said in ("yes", "always", "always: exec", "y", "ok"):
        assert form.answer({"answer": said}) is None
    assert form.answer({"answer": "no", "words": "too long"}) == "no: too long"
    with pytest.raises(UsageError, match="was not shown completely here"):
        check_shown_whole(question, tmp_path, "yes")
    check_shown_whole(question, tmp_path, "no")


def test_what_fits_can_be_agreed_to(tmp_path: Path) -> None:
    form = form_of(script("ls; ls"), tmp_path)
    assert "  runs: ls  (2 times)" in form.message
    assert form.answer({"answer": "yes"}) == "yes"


def test_a_terminal_has_a_bound_too(tmp_path: Path) -> None:
    page = page_of(script("; ".join(f"echo {number}" for number in range(3_000))), tmp_path)
    assert not page.fitted(TERMINAL).is_whole


def test_a_file_that_the_reader_may_not_see_is_not_agreed_to_there() -> None:
    question = asked({"path": ".env", "text": "TOKEN=x"}, tool="writeTextFile", subject=None)
    fitted = page_of(question, None).fitted(FORM)
    assert (fitted.is_whole, "the file is off limits to tools" in fitted.text) == (False, True)
    assert page_of(asked({"path": ".env"}, tool="deleteFile", subject=None), None).fitted(FORM).is_whole


def test_a_file_that_has_changed_since_it_was_asked_about_is_said_to(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("old\n")
    args: JsonObject = {"path": "a.txt", "oldText": "old", "newText": "new"}
    then = content_digest(tmp_path, BASE_SKILL, "editTextFile", args)
    question = asked(args, tool="editTextFile", subject=None).model_copy(update={"content": then})
    assert "changed since" not in "\n".join(lines_of(question, tmp_path))
    (tmp_path / "a.txt").write_text("old\nand more\n")
    lines = lines_of(question, tmp_path)
    assert (
        "  the file has changed since the question was asked: this is the current diff, and a yes asks again" in lines
    )
    assert "   and more" in lines


def test_commands_of_a_servers_tool_are_parsed_as_rules_parse_them(tmp_path: Path) -> None:
    tool = McpTool(name="run", script="line")
    expert = Expert(key="a", instruction="I.", skills=(McpStdioSkill(name="box", command="box", tools=(tool,)),))
    for name in ("run", "box_run"):
        assert subject_of(DecidedCall(id="c", tool_name=name, skill_name="box"), expert) == tool
    assert subject_of(DecidedCall(id="c", tool_name="exec", skill_name="box"), expert) is None
    assert subject_of(DecidedCall(id="c", tool_name="exec", skill_name=BASE_SKILL), expert) == EXEC_SUBJECT
    question = asked({"line": "ls | xargs rm"}, tool="run", skill="box", subject=tool)
    assert "  runs: ls" in lines_of(question, tmp_path)
    other = asked({"command": "ls"}, skill="box", subject=None)
    assert lines_of(other, tmp_path)[1] == "  command: ls"


@pytest.mark.parametrize("name", ["text\n  runs: ls", "a\u2800b", "path: safe.txt\u2028"])
def test_no_name_or_value_looks_like_a_line_of_the_page(tmp_path: Path, name: str) -> None:
    lines = lines_of(asked({name: "v\n  runs: ls", "command": "rm"}), tmp_path)
    assert [line for line in lines if line.startswith("  runs:")] == ["  runs: rm"]
    assert all(char.isprintable() for line in lines for char in line)
