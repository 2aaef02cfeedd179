"""The model of the next Runs: shown, chosen from the known models, or typed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hosts import Bench, expert, wait_for
from plain_person import begin_person
from terminal_app import Screen, run_app
from typing_extensions import override

from perstack.host import Host
from perstack.ports.provider import OfferedModel
from perstack.testing.scripted import ScriptedProvider, text, turn

WRITER = expert("writer", description="Writes haiku")
MODELS = ("larch-large", "larch-small", "oak-\x1b[31mred")


class Listing(ScriptedProvider):
    """A scripted provider with a list of models."""

    default_model = "larch-small"

    @override
    def models(self, env: Mapping[str, str]) -> Sequence[OfferedModel]:
        return [OfferedModel(name) for name in MODELS]


def _host(bench: Bench, *replies: object) -> Host:
    return bench.host(Listing([*replies, text("Well.")]), WRITER)


async def used(host: Host) -> list[str]:
    """Return the model of each Run of the Job."""
    job = (await host.jobs.list()).jobs[0]
    return [run.model for run in (await host.jobs.runs(job.id)).runs]


async def _say(screen: Screen, words: str) -> None:
    await screen.type(words)
    await screen.press("enter")


def test_the_line_says_the_model_and_a_typed_one_is_used_from_the_next_run_on(bench: Bench) -> None:
    async def person() -> None:
        host = _host(bench, text("First."), text("Second."), text("Third."))
        async with run_app(host, expert="writer", notices=True) as screen:
            await screen.sees(" new  ·  larch-small")
            await _say(screen, "One")
            await screen.sees("First.", "✓ completed  ·  larch-small")
            await _say(screen, "/model larch-large")
            await screen.sees("scripted/larch-large from")
            screen.app.clear_notifications()
            await screen.sees("larch-small → larch-large")
            await _say(screen, "Two")
            await screen.sees("Second.", "✓ completed  ·  larch-large")
            await screen.press("f4")
            await screen.sees("of scripted", "larch-small  as set", "❯ larch-large  in force")
            await screen.press("up", "enter")
            await screen.sees("larch-large → larch-small")
            await _say(screen, "Three")
            await screen.sees("Third.", "✓ completed  ·  larch-small")
        assert await used(host) == ["scripted/larch-small", "scripted/larch-large", "scripted/larch-small"]

    wait_for(person())


def test_a_name_that_is_nearly_a_known_one_is_warned_of_and_still_used(bench: Bench) -> None:
    async def person() -> None:
        host = _host(bench)
        async with run_app(host, expert="writer", notices=True) as screen:
            await screen.sees("what should writer do?")
            await _say(screen, "/model larch-smal")
            await screen.sees("`larch-smal` is not a known model", "`larch-small`?")
            screen.app.clear_notifications()
            await screen.press("f4")
            await screen.sees("larch-large")
            await screen.type("larch-lrge")
            await screen.sees("❯ larch-lrge  `larch-lrge` is not a known model; did you mean", "  larch-large")
            await screen.press("down", "enter")
            await screen.sees(" new  ·  larch-large")
            await _say(screen, "One")
            await screen.sees("✓ completed")
        assert await used(host) == ["scripted/larch-large"]

    wait_for(person())


def test_typing_filters_and_a_name_of_no_list_is_taken(bench: Bench) -> None:
    async def person() -> None:
        host = _host(bench)
        async with run_app(host, expert="writer", size=(100, 24)) as screen:
            await _say(screen, "/model")
            shown = await screen.sees("larch-large", "oak-")
            assert "\x1b" not in shown
            await screen.type("oak")
            await screen.sees_no("larch-large  ")
            await screen.sees("❯ oak-", "oak  `oak` is not a known model")
            await screen.type("-2027")
            await screen.sees("❯ oak-2027")
            await screen.press("enter")
            await screen.sees(" new  ·  oak-2027")
            await _say(screen, "//model is a word")
            await screen.sees("❯ /model is a word", "✓ completed")
        assert await used(host) == ["scripted/oak-2027"]

    wait_for(person())


def test_a_model_chosen_while_a_job_is_at_work_is_the_next_runs(bench: Bench) -> None:
    async def person() -> None:
        host = _host(bench, turn(text="Slowly.", delay_ms=1000))
        async with run_app(host, expert="writer", query="One") as screen:
            await screen.sees("● at work  ·  larch-small")
            await _say(screen, "/model larch-large")
            await screen.sees("larch-small → larch-large")
            await screen.sees("✓ completed")
            await _say(screen, "Two")
            await screen.sees("Well.", "✓ completed  ·  larch-large")
        assert await used(host) == ["scripted/larch-small", "scripted/larch-large"]

    wait_for(person())


def test_without_an_expert_there_is_no_model_to_choose(bench: Bench) -> None:
    async def person() -> None:
        async with run_app(_host(bench), notices=True) as screen:
            await screen.sees("Choose an Expert")
            await screen.press("f4")
            await screen.sees("Choose an Expert first")

    wait_for(person())


def test_the_program_without_a_screen_lists_the_models_and_uses_a_typed_one(bench: Bench) -> None:
    async def person() -> None:
        host = _host(bench, text("First."), text("Second."), text("Third."))
        async with begin_person(host) as one:
            await one.types("/model", "Choose an Expert first: its definition names the model.")
            await one.types("writer", "> what should writer do?")
            await one.types("One", "First.", "completed: 1 step")
            listed = await one.types("/model", "/model NAME uses one from the next Run on")
            assert listed.splitlines()[:3] == ["larch-small: as set, in force", "larch-large", "oak- [31mred"]
            await one.types("/model larch-large", "scripted/larch-large from the next Run on")
            assert "larch-large: in force" in await one.types("/model", "/model NAME")
            await one.types("Two", "Second.", "completed: 2 steps")
            await one.types("/model larch-smal", "`larch-smal` is not a known model; did you mean `larch-small`?")
            await one.types("Three", "Third.", "completed: 3 steps")
        assert await used(host) == ["scripted/larch-small", "scripted/larch-large", "scripted/larch-smal"]

    wait_for(person())
