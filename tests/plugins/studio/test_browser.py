"""`perstack studio` in a real browser: what a person does there, live pages, keys, and what others can see of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest
from browser import Person, crawl, entries, focused, open_browser, person
from studio_server import StudioServer, serving_studio
from terminal import SECONDS, Terminal, reply, trusting

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser

PROJECT = """
maxRepeats = 0
[experts.lead]
description = "leads"
instruction = "You lead."
delegates = ["helper"]
[experts.helper]
description = "helps"
instruction = "You help."
[experts.writer]
instruction = "You write."
[experts.guest]
instruction = "You ask."
ask = true
[experts.slow]
instruction = "You take your time."
[experts.failing]
instruction = "You fail."
[permissions]
ask = ["writeTextFile"]
"""
WRITES = reply("I write.", ("writeTextFile", {"path": "a.txt", "text": "one\n<b>two</b>\n"}), usage=(900, 40))
TODO = ("todo", {"newTodos": ["look"]})
MARKDOWN = "A **list**:\n\n- one\n- [two](https://example.org)\n\n| a | b |\n| - | - |\n| 1 | 2 |\n"
HOSTILE = "<img src=x onerror=\"alert('owned')\"><script>alert('owned')</script>"
SCRIPT = {
    "lead": [
        reply(
            "I ask the helper.", ("helper", {"query": "Count the files"}), thinking="Who could do it?", usage=(800, 30)
        ),
        reply(MARKDOWN, usage=(900, 50)),
        reply("More of it."),
    ],
    "helper": [reply("", TODO, usage=(300, 20)), reply("Three files.", usage=(340, 12))],
    "writer": [WRITES, reply("Written.")],
    "guest": [reply("", ("askUser", {"question": "What to drink?", "options": ["Tea", "Coffee"]})), reply("Thanks.")],
    "slow": [{**reply(f"Step {number}.", TODO), "delayMs": 150} for number in range(12)] + [reply("The end.")],
    "failing": [{"error": {"message": f"refused {HOSTILE}", "status": 400}}],
}

AXE = {
    "resultTypes": ["violations"],
    "preload": False,
    # browsers let the keyboard reach what scrolls; Chromium since 130, Firefox always
    "rules": {"scrollable-region-focusable": {"enabled": False}},
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as started:
        yield started


@contextmanager
def _project(folder: Terminal) -> Iterator[Terminal]:
    with trusting(folder.workspace):
        yield folder.project(PROJECT, **SCRIPT)


def run_job(terminal: Terminal, expert: str, query: str, *more: str) -> str:
    """Run a Job in its own process; return its id."""
    job_id = f"{expert}-{len([*terminal.jobs().glob('*')])}"
    terminal.run("run", expert, query, "--provider", "scripted", "--no-input", "--job-id", job_id, *more)
    return job_id


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Terminal, StudioServer]]:
    """Yield a project with Jobs in many states, and its studio, shared by all tests that do not end it."""
    folder = Terminal(tmp_path_factory.mktemp("studio"))
    with _project(folder) as terminal, serving_studio(terminal) as server:
        run_job(terminal, "lead", "How many files are there?", "--label", "kind=count")
        run_job(terminal, "failing", f"Fail {HOSTILE}")
        run_job(terminal, "writer", "Write a file")
        assert (
            terminal.run("task", "create", "deploy", "--agent", "ci", "--state", '{"to": "prod"}', "--start").code == 0
        )
        pause = ("task", "pause", "deploy", "--reason", "human_approval", "--message", f"Deploy? {HOSTILE}")
        assert terminal.run(*pause).code == 0
        yield terminal, server


@pytest.fixture
def me(browser: Browser, studio: tuple[Terminal, StudioServer]) -> Iterator[Person]:
    with person(browser, studio[1]) as found:
        yield found


@pytest.fixture
def terminal(studio: tuple[Terminal, StudioServer]) -> Terminal:
    return studio[0]


@pytest.fixture
def question(terminal: Terminal) -> Callable[[str], str]:
    """Return a function that has an Expert ask something; it returns the address of the question."""

    def ask(expert: str) -> str:
        job_id = run_job(terminal, expert, "Go on")
        ids = [item["id"] for item in terminal.run("inbox", "--json").events]
        return next(f"/questions/{one}" for one in ids if one.startswith(f"{job_id}-"))

    return ask


def has_text(page: Page, text: str) -> None:
    """Wait until the page shows a text."""
    page.get_by_text(text).first.wait_for()


def status_is(page: Page, text: str) -> None:
    """Wait until the page of a Job shows a status."""
    page.locator("live-state .status", has_text=text).first.wait_for()


def test_a_link_opens_the_inbox_and_no_second_browser(browser: Browser, terminal: Terminal, me: Person) -> None:
    port = me.server.url.rpartition(":")[2]
    link = terminal.run("studio", "--link", "--http", f"127.0.0.1:{port}").lines[0]
    first, second = browser.new_context(), browser.new_context()
    try:
        page = first.new_page()
        page.goto(link)
        assert page.url == f"{me.server.url}/"
        assert "key=" not in page.content()
        refused = second.new_page().goto(link)
        assert refused is not None
        assert refused.status == 403
    finally:
        first.close()
        second.close()


def test_a_call_is_approved_from_the_inbox(me: Person, terminal: Terminal, question: Callable[[str], str]) -> None:
    address = question("writer")
    page = me.tab("/")

    page.locator(f'a[href="{address}"]').click()
    assert "<b>two</b>" in page.locator(".diff, .block").first.inner_text() + page.locator("main").inner_text()
    page.get_by_label("Approve this call").check()
    page.get_by_role("button", name="Send the answer").click()

    status_is(page, "completed")
    assert (terminal.workspace / "a.txt").read_text() == "one\n<b>two</b>\n"


def test_a_call_is_approved_with_changes(me: Person, terminal: Terminal, question: Callable[[str], str]) -> None:
    page = me.tab(question("writer"))

    page.get_by_label("Approve it with the arguments below").check()
    page.locator("summary", has_text="Change the arguments").click()
    page.locator("#arguments").fill('{"path": "b.txt", "text": "mine\\n"}')
    page.get_by_role("button", name="Send the answer").click()

    status_is(page, "completed")
    assert (terminal.workspace / "b.txt").read_text() == "mine\n"


def test_a_call_is_refused_with_a_reason_that_the_model_reads(me: Person, question: Callable[[str], str]) -> None:
    page = me.tab(question("writer"))

    page.get_by_label("Refuse").check()
    page.get_by_label("Reason for a refusal").fill("use another name")
    page.get_by_role("button", name="Send the answer").click()
    status_is(page, "completed")
    page.get_by_role("link", name="Conversation").click()

    assert "use another name" in page.locator(".entry.call").first.inner_text() + page.content()


def test_a_question_is_answered_with_one_of_its_options(me: Person, question: Callable[[str], str]) -> None:
    page = me.tab(question("guest"))

    page.get_by_label("Coffee").check()
    page.get_by_role("button", name="Send the answer").click()

    status_is(page, "completed")
    has_text(page, "Thanks.")


def test_of_two_tabs_that_answer_one_wins_and_the_other_sees_it(me: Person, question: Callable[[str], str]) -> None:
    address = question("writer")
    tabs = [me.tab(address), me.tab(address)]
    for tab in tabs:
        tab.get_by_label("Approve this call").check()
    me.expected = {409}

    for tab in tabs:
        tab.evaluate("document.querySelector('form[method=post]').requestSubmit()")
    for tab in tabs:
        tab.locator("live-state").or_(tab.get_by_text("answered already")).first.wait_for()

    assert sorted(tab.get_by_text("answered already").count() for tab in tabs) == [0, 1]


def test_the_form_of_an_answered_question_cannot_be_sent_again(me: Person, question: Callable[[str], str]) -> None:
    page = me.tab(question("writer"))
    page.get_by_label("Refuse").check()
    page.get_by_role("button", name="Send the answer").click()
    status_is(page, "completed")
    me.expected = {409}

    page.go_back()

    if page.get_by_role("button", name="Send the answer").count():  # the browser kept the page
        page.get_by_label("Approve this call").check()
        page.get_by_role("button", name="Send the answer").click()
    has_text(page, "answered already")


def test_a_job_is_started_by_a_form_and_followed_to_its_end(me: Person) -> None:
    page = me.tab("/experts/slow/start")

    page.get_by_label("What it should do").fill("Take your time")
    page.get_by_role("button", name="Start").click()

    status_is(page, "running")
    status_is(page, "completed")
    assert page.get_by_text("The end.").count()
    assert page.locator(".gone").count() == 0


def test_a_conversation_that_was_followed_equals_one_that_is_loaded(me: Person) -> None:
    page = me.tab("/experts/slow/start")
    page.get_by_label("What it should do").fill("Take your time")
    page.get_by_role("button", name="Start").click()
    page.get_by_role("link", name="Conversation").click()
    has_text(page, "Step 0.")
    before = len(entries(page))

    page.locator(".entry", has_text="The end.").wait_for()
    page.locator(".entry.note, .entry.result, .entry", has_text="The end.").first.wait_for()
    loaded = me.tab(page.url.removeprefix(me.server.url))

    assert before < len(entries(page))
    assert _without_last_notes(entries(page)).items() <= entries(loaded).items()
    assert [*entries(page)] == [*entries(loaded)][: len(entries(page))]


def _without_last_notes(found: dict[str, str]) -> dict[str, str]:
    return {key: html for key, html in found.items() if " open" not in html}


def test_a_call_stays_unfolded_while_its_entry_changes(me: Person) -> None:
    page = me.tab("/experts/slow/start")
    page.get_by_label("What it should do").fill("Take your time")
    page.get_by_role("button", name="Start").click()
    page.get_by_role("link", name="Conversation").click()
    first = page.locator(".entry.call details").first

    first.locator("summary").click()
    has_text(page, "The end.")

    assert first.evaluate("one => one.open")


def test_a_running_job_is_given_a_text_and_stopped(me: Person) -> None:
    page = me.tab("/experts/slow/start")
    page.get_by_label("What it should do").fill("Take your time")
    page.get_by_role("button", name="Start").click()

    page.locator('textarea[name="text"]').fill("Hurry up")
    page.get_by_role("button", name="Tell").click()
    page.get_by_role("button", name="Stop the Job").click()

    page.locator("live-state .status.warn").first.wait_for()


def test_a_completed_job_is_continued(me: Person, terminal: Terminal) -> None:
    page = me.tab(f"/jobs/{run_job(terminal, 'lead', 'Count')}")

    page.locator('textarea[name="query"]').fill("And now?")
    page.get_by_role("button", name="Continue").click()

    page.locator("live-state .line a", has_text="lead").nth(1).wait_for()


def test_a_delegate_is_found_from_the_call_and_from_the_time_line(me: Person, terminal: Terminal) -> None:
    page = me.tab(f"/jobs/{run_job(terminal, 'lead', 'Count')}")
    page.get_by_role("link", name="helper").first.click()
    has_text(page, "Three files.")
    page.get_by_role("link", name="Conversation").click()
    page.locator(".entry.call summary", has_text="helper").click()
    page.get_by_role("link", name="The conversation of the delegate").click()

    has_text(page, "Three files.")


def test_the_list_is_filtered(me: Person) -> None:
    page = me.tab("/jobs")
    page.get_by_label("Label").fill("kind=count")
    page.get_by_role("button", name="Filter").click()

    assert page.locator("tbody tr").count() == 1
    page.get_by_role("link", name="all Jobs").click()
    assert page.locator("tbody tr").count() > 1


def test_a_server_that_was_killed_is_found_again_and_nothing_is_lost_or_shown_twice(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = Terminal(tmp_path_factory.mktemp("killed"))
    with _project(folder) as terminal, ExitStack() as stack:
        first = stack.enter_context(serving_studio(terminal, is_killed=True))
        job_id = run_job(terminal, "lead", "Count")
        me = stack.enter_context(person(browser, first))
        page = me.tab(f"/jobs/{job_id}/conversation")
        has_text(page, "list")
        before = entries(page)

        me.is_server_gone = True
        first.process.kill()
        first.process.wait(SECONDS)
        page.get_by_role("status").filter(has_text="The connection is lost").wait_for()
        with serving_studio(terminal, address=first.url.removeprefix("http://")):
            page.locator(".gone").wait_for(state="detached")
            terminal.run("run", "lead", "More", "--provider", "scripted", "--continue-job", job_id)
            loaded = me.tab(f"/jobs/{job_id}/conversation")
            has_text(loaded, "More of it.")
            assert entries(page) == before  # that of the Run before: nothing is added, nothing twice
            page.close()
            loaded.close()


def test_a_page_that_is_open_for_long_keeps_its_last_entries_and_a_link_to_the_others(
    me: Person, terminal: Terminal
) -> None:
    job_id = run_job(terminal, "lead", "Count")
    page = me.tab(f"/jobs/{job_id}/conversation")
    page.locator(".entry").last.wait_for()
    before = [*entries(page)]
    trim = "limit => document.querySelector('live-entries').trim(limit)"

    page.evaluate("customElements.get('older-entries').limit = 0")  # the link is only a link
    page.evaluate(trim, 4)
    page.evaluate(trim, 3)

    kept = [*entries(page)]
    assert 0 < len(kept) <= 3
    assert kept == before[-len(kept) :]
    page.locator("older-entries a").click()
    page.wait_for_url("**until=*")
    assert [*entries(page)] == before[: -len(kept)]


def test_an_answer_is_given_with_the_keyboard_alone(me: Person, question: Callable[[str], str]) -> None:
    address = question("writer")
    page = me.tab("/")

    _tab_to(page, f'a[href="{address}"]')
    page.keyboard.press("Enter")
    page.wait_for_url(f"**{address}")
    _tab_to(page, 'input[name="answer"]')
    page.keyboard.press("Space")
    _tab_to(page, "form.card button.main")
    page.keyboard.press("Enter")

    status_is(page, "completed")


def _tab_to(page: Page, selector: str) -> None:
    """Press Tab until an element has the focus, which is seen."""
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.locator(selector).first.evaluate("one => one === document.activeElement"):
            assert focused(page).evaluate("one => getComputedStyle(one).outlineStyle") != "none"
            return
    raise AssertionError(f"{selector} is not reached by Tab")


def test_without_javascript_a_call_is_approved(
    browser: Browser, studio: tuple[Terminal, StudioServer], question: Callable[[str], str]
) -> None:
    with person(browser, studio[1], java_script_enabled=False) as me:
        page = me.tab(question("writer"))
        page.get_by_label("Approve this call").check()
        page.get_by_role("button", name="Send the answer").click()

        assert re.search(r"/jobs/writer-\d+$", page.url)


def test_a_studio_that_only_shows_has_no_form_to_send(browser: Browser, studio: tuple[Terminal, StudioServer]) -> None:
    terminal, _ = studio
    with serving_studio(terminal, "--read-only") as server, person(browser, server) as me:
        for path, page in crawl(me, "/", "/jobs", "/experts/lead/start"):
            assert page.locator('form[method="post"]').count() == 0, path


def test_every_page_is_found_by_its_links_and_fits_in_the_window(
    browser: Browser, studio: tuple[Terminal, StudioServer], question: Callable[[str], str]
) -> None:
    question("guest")
    for width in (390, 1280):
        with person(browser, studio[1], viewport={"width": width, "height": 800}) as me:
            for path, page in crawl(me, "/", "/jobs", "/experts/lead/start"):
                too_wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
                assert too_wide <= 0, f"{path} is {too_wide} pixels wider than a window of {width}"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_keeps_out_people_who_see_or_work_otherwise(
    browser: Browser, studio: tuple[Terminal, StudioServer], question: Callable[[str], str], scheme: str
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    question("writer")
    found: list[str] = []
    with person(browser, studio[1], color_scheme=scheme) as me:
        for path, page in crawl(me, "/", "/jobs", "/experts/lead/start"):
            before = [*me.problems]
            violations = Axe().run(page, options=AXE).response["violations"]
            me.problems[:] = before  # axe itself tries inline styles, which the policy refuses
            for one in violations:
                nodes = [node["html"][:160] for node in one["nodes"][:3]]
                found.append(f"{path}: {one['id']}: {one['help']}: {nodes}")
    assert not found, "\n".join(found)


def test_a_hostile_text_does_nothing_in_a_browser(me: Person, terminal: Terminal) -> None:
    page = me.tab(f"/jobs/{run_job(terminal, 'failing', f'Fail {HOSTILE}')}")
    has_text(page, "<script>alert")
    me.go(page, "/jobs")

    assert page.locator("main img, main script").count() == 0


def test_an_unknown_page_says_so_in_one_line(me: Person) -> None:
    me.expected = {404}
    page = me.tab("/jobs/nothing")

    has_text(page, "Not found")


def test_nothing_moves_for_who_wants_no_motion(browser: Browser, studio: tuple[Terminal, StudioServer]) -> None:
    with person(browser, studio[1], reduced_motion="reduce") as me:
        page = me.tab("/experts/slow/start")
        page.get_by_label("What it should do").fill("Take your time")
        page.get_by_role("button", name="Start").click()
        status_is(page, "running")

        assert page.evaluate("document.getAnimations().length") == 0
        status_is(page, "completed")


def test_older_entries_of_a_long_conversation_are_loaded_on_demand(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = Terminal(tmp_path_factory.mktemp("long"))
    with _project(folder) as terminal:
        terminal.script(slow=[reply(f"Step {number}.", TODO) for number in range(120)] + [reply("The end.")])
        job_id = run_job(terminal, "slow", "Go", "--max-steps", "200")
        with serving_studio(terminal) as server, person(browser, server) as me:
            page = me.tab(f"/jobs/{job_id}/conversation")
            has_text(page, "The end.")
            assert page.get_by_text("Step 0.", exact=True).count() == 0

            for _ in range(5):
                if page.get_by_text("Step 0.", exact=True).count():
                    break
                page.get_by_role("link", name="Older", exact=True).click()
                page.wait_for_load_state()
            assert page.get_by_text("Step 0.", exact=True).count() == 1


def test_a_search_shows_what_it_finds_while_one_types(me: Person) -> None:
    page = me.tab("/jobs")
    page.keyboard.press("/")
    page.wait_for_url("**/search#q")
    page.wait_for_function("document.activeElement?.id === 'q'")
    page.keyboard.type("three fil")
    page.wait_for_url("**/search?q=three%20fil")
    assert re.fullmatch(r"[1-9]\d* found", page.locator("search-typed [role=status]").inner_text())
    typed = page.locator(".found").inner_html()
    page.reload()
    assert page.locator(".found").inner_html() == typed, "the page that is loaded is the same"
    page.locator("#q").focus()
    page.keyboard.press("Escape")
    page.wait_for_function("document.activeElement?.id !== 'q'")
    page.keyboard.press("/")
    page.keyboard.press("Control+a")
    page.keyboard.type("cathedral")
    page.wait_for_url("**/search?q=cathedral")
    assert page.locator("search-typed [role=status]").inner_text() == "0 found"
