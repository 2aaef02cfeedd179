"""Questions of tasks in the studio: shown with what they are about, and answered once, as they were shown."""

from __future__ import annotations

import json

from studio_server import serving_studio
from terminal import TEAM, Terminal

PAGE = "/tasks/deploy/question"


def _pause(terminal: Terminal, reason: str, message: str) -> None:
    done = terminal.run("task", "pause", "deploy", "--reason", reason, "--message", message)
    assert done.code == 0, done.err


def _ask(terminal: Terminal, reason: str, message: str) -> None:
    terminal.project(TEAM)
    created = terminal.run(
        *("task", "create", "deploy", "--agent", "ci", "--description", "Ship <b>it</b>", "--state", '{"to": "prod"}'),
        "--start",
    )
    assert created.code == 0, created.err
    _pause(terminal, reason, message)


def _task(terminal: Terminal) -> dict:
    return json.loads(terminal.run("task", "get", "deploy", "--json").out)


def test_a_request_of_a_task_is_approved_and_says_who_did(terminal: Terminal) -> None:
    _ask(terminal, "human_approval", "Deploy <i>now</i>?")
    with serving_studio(terminal) as server:
        visitor = server.visitor()
        assert f'href="{PAGE}"' in visitor.get("/")
        page = visitor.get(PAGE)
        for text in ("Deploy &lt;i&gt;now&lt;/i&gt;?", "Ship &lt;b&gt;it&lt;/b&gt;", "&#34;to&#34;: &#34;prod&#34;"):
            assert text in page
        assert 'value="yes"' in page
        assert 'value="no"' in page

        visitor.send(page, PAGE, status=400, answer="maybe")
        visitor.send(page, PAGE, status=400)
        inbox = visitor.follow(visitor.send(page, PAGE, answer="yes", reason="after lunch"))

        assert "Nothing waits for a person" in inbox
    task = _task(terminal)
    assert (task["input"], task["inputText"], task["inputBy"]["door"]) == (True, "after lunch", "studio")


def test_of_two_tabs_the_first_answer_wins(terminal: Terminal) -> None:
    _ask(terminal, "human_input", "Which version?")
    with serving_studio(terminal) as server:
        visitor = server.visitor()
        first, second = visitor.get(PAGE), visitor.get(PAGE)
        assert "<textarea" in first

        visitor.send(first, PAGE, answer="1.2")
        late = visitor.send(second, PAGE, status=409, answer="1.3")

        assert "answered already" in late.text
        assert "answered already" in visitor.get(PAGE, 409)
    assert _task(terminal)["input"] == "1.2"


def test_an_answer_never_reaches_a_later_question_of_the_task(terminal: Terminal) -> None:
    _ask(terminal, "human_approval", "Deploy to the test system?")
    with serving_studio(terminal) as server:
        visitor = server.visitor()
        page = visitor.get(PAGE)
        assert terminal.run("task", "answer", "deploy", "yes").code == 0
        assert terminal.run("task", "resume", "deploy").code == 0
        stale = visitor.send(page, PAGE, status=409, answer="yes")
        _pause(terminal, "human_approval", "Deploy to the test system?")  # the same words, but another question
        late = visitor.send(page, PAGE, status=409, answer="yes")
        forged = visitor.send(visitor.get(PAGE), PAGE, status=409, answer="yes", digest="0" * 64)

        assert "was never asked" in stale.text
        assert "has changed since" in late.text
        assert "has changed since" in forged.text
    assert "input" not in _task(terminal) or _task(terminal)["input"] is None


def test_a_request_that_is_not_shown_completely_can_only_be_refused(terminal: Terminal) -> None:
    _ask(terminal, "human_approval", "Deploy? " + "x" * 100_000)
    with serving_studio(terminal) as server:
        visitor = server.visitor()
        page = visitor.get(PAGE)
        assert "can only be refused" in page

        visitor.send(page, PAGE, status=400, answer="yes")
        visitor.send(page, PAGE, answer="no", reason="too long")

    assert (_task(terminal)["input"], _task(terminal)["inputText"]) == (False, "too long")


def test_a_studio_that_only_shows_has_no_form_for_a_task(terminal: Terminal) -> None:
    _ask(terminal, "human_approval", "Deploy?")
    with serving_studio(terminal) as server:
        form = server.visitor().get(PAGE)
    with serving_studio(terminal, "--read-only") as server:
        visitor = server.visitor()
        page = visitor.get(PAGE)
        assert "Deploy?" in page
        assert "<form" not in page
        refused = visitor.send(form, PAGE, status=400, answer="yes")
        assert "--read-only" in refused.text
    assert not _task(terminal).get("answered")


def test_a_task_that_waits_for_a_failed_one_is_listed_without_an_answer(terminal: Terminal) -> None:
    terminal.project(TEAM)
    for command in (
        ("create", "build", "--start"),
        ("create", "deploy", "--depends-on", "build"),
        ("fail", "build", "x"),
    ):
        done = terminal.run("task", *command)
        assert done.code == 0, done.err
    with serving_studio(terminal) as server:
        visitor = server.visitor()
        inbox = visitor.get("/")
        assert "waits for build (failed" in inbox
        assert PAGE not in inbox
        assert "perstack answer" not in inbox
        visitor.get(PAGE, 409)


def test_a_task_that_asks_nothing_has_no_question_page(terminal: Terminal) -> None:
    terminal.project(TEAM)
    assert terminal.run("task", "create", "deploy", "--agent", "ci", "--start").code == 0
    with serving_studio(terminal) as server:
        visitor = server.visitor()
        visitor.get(PAGE, 409)
        visitor.get("/tasks/other/question", 404)
        assert visitor.client.get("/tasks/%00%3Cb%3E/question").status_code in (400, 404)
