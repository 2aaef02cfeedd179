"""F3, and a Job whose question others have answered meanwhile."""

from __future__ import annotations

from hosts import Bench, expert, wait_for
from terminal_app import run_app

from perstack.core.definitions.permissions import Permissions
from perstack.testing.scripted import text, tool

GUEST = expert("guest", ask=True, description="Asks first")
RELEASER = expert("releaser", description="Releases", permissions=Permissions(ask=("writeTextFile",)))
SCRIPT = {
    "guest": [tool("askUser", {"question": "Tea or coffee?"}), text("Served.")],
    "releaser": [tool("writeTextFile", {"path": "out.txt", "text": "2\n"}), text("It is out.")],
}


def test_what_waits_is_listed_with_what_it_is_and_what_others_answer_leaves_it(bench: Bench) -> None:
    async def person() -> None:
        host, other = (bench.host(SCRIPT, GUEST, RELEASER) for _ in range(2))
        for number in range(30):
            await other.run("guest" if number % 3 else "releaser", "Go", job_id=f"j{number:02}")
        async with run_app(host, size=(120, 24)) as screen:
            await screen.press("f3")
            await screen.sees("❯ ? releaser", "approve writeTextFile out.txt", "Tea or coffee?", "j00 ")
            await screen.press("down", "down")
            await screen.sees("❯ ? guest               Tea or coffee?")
            await other.answer("Tea", job_id="j01")
            seen = await screen.sees_no(" j01 ")
            (chosen,) = [line for line in seen.splitlines() if line.startswith("❯")]
            assert " j02 " in chosen
            await other.answer("Tea", job_id="j02")
            seen = await screen.sees_no(" j02 ")
            (chosen,) = [line for line in seen.splitlines() if line.startswith("❯")]
            assert " j03 " in chosen
            await screen.press("end")
            await screen.sees(" j29 ")
            await screen.press("enter")
            await screen.sees("guest asks: Tea or coffee?", "1 guest ?")
            await screen.type("Coffee")
            await screen.press("enter")
            await screen.sees("Served.", "✓ completed")
            await screen.press("f3", "end")
            await screen.sees("❯ ? guest", " j28 ")

    wait_for(person())


def test_on_a_narrow_screen_the_inbox_has_room_for_what_is_asked(bench: Bench) -> None:
    async def person() -> None:
        host = bench.host(SCRIPT, GUEST)
        await host.run("guest", "Go")
        async with run_app(host, size=(40, 10)) as screen:
            await screen.press("f3")
            await screen.sees("❯ ? guest", "Tea or", "just now")

    wait_for(person())


def test_an_answer_that_comes_second_is_said_to_have_been_too_late(bench: Bench) -> None:
    async def person() -> None:
        host, other = (bench.host(SCRIPT, GUEST) for _ in range(2))
        await other.run("guest", "Go", job_id="tea")
        async with run_app(host, job_id="tea") as screen:
            await screen.sees("guest asks: Tea or coffee?", "? waits for you")
            await other.answer("Tea", job_id="tea")
            await screen.type("Coffee")
            await screen.press("enter")
            await screen.sees("result askUser: Tea", "✓ completed", "has been answered already")

    wait_for(person())
