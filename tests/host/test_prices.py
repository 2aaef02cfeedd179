"""What tokens cost, where the price is known."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hosting import Bench, Seen, expert, wait_for
from hypothesis import given
from hypothesis import strategies as st

from perstack.core.messages import ExpertMessage
from perstack.core.usage import Usage
from perstack.engine.prices import Prices
from perstack.ports.provider import Generation
from perstack.testing.scripted import text


def known(provider: str, model: str, usage: Usage) -> tuple[Usage, int | None]:
    return wait_for(Prices().known(provider, model, Generation(ExpertMessage(), usage, "stop")))


def test_a_known_model_has_a_cost_and_a_context_size() -> None:
    usage, window = known("anthropic", "claude-sonnet-4-5", Usage.of(1000, 100, cached=500, cache_writes=100))
    # 400 sent at 3, 500 read from the cache at 0.3, 100 written to it at 3.75, 100 generated at 15 dollars a million
    assert usage.cost_usd == pytest.approx((400 * 3 + 500 * 0.3 + 100 * 3.75 + 100 * 15) / 1e6)
    assert window == 200_000


@pytest.mark.parametrize(
    ("provider", "model"), [("scripted", "x"), ("local", "y"), ("openai", "no-such-model-of-theirs")]
)
def test_what_is_not_known_costs_nothing_and_says_nothing(provider: str, model: str) -> None:
    usage, window = known(provider, model, Usage.of(5, 5))
    assert (usage.cost_usd, window) == (None, None)


def test_one_job_may_use_models_with_published_prices_and_without() -> None:
    async def both() -> list[float | None]:
        prices = Prices()
        reply = Generation(ExpertMessage(), Usage.of(1000, 100), "stop")
        asked = [("local", "y"), ("anthropic", "claude-sonnet-4-5"), ("local", "y")]
        return [(await prices.known(*one, reply))[0].cost_usd for one in asked]

    first, second, third = wait_for(both())
    assert (first, third) == (None, None)
    assert second is not None


def test_prices_are_imported_while_the_first_model_with_published_ones_works() -> None:
    program = (
        "import asyncio, sys\n"
        "from perstack.engine.prices import Prices\n"
        "async def main():\n"
        "    prices = Prices()\n"
        "    prices.prepare('scripted')\n"
        "    await asyncio.get_running_loop().shutdown_default_executor()\n"
        "    print('genai_prices' in sys.modules)\n"
        "asyncio.run(main())\n"
        "async def again():\n"
        "    prices = Prices()\n"
        "    prices.prepare('anthropic')\n"
        "    await asyncio.get_running_loop().shutdown_default_executor()\n"
        "    print('genai_prices' in sys.modules)\n"
        "asyncio.run(again())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["False", "True"]


@given(st.permutations([Usage(cost_usd=cost) for cost in (0.1, 0.2, 0.3, 1e-9, None, 12.345678901)]))
def test_a_sum_of_costs_is_the_same_in_any_order(usages: list[Usage]) -> None:
    total = Usage()
    for usage in usages:
        total = total + usage
    assert total.cost_usd == 12.945678902


def test_context_usage_is_that_of_the_last_generation(bench: Bench) -> None:
    seen = Seen()
    host = bench.host([text("ok", usage=(900, 100))], expert("a"))
    job = wait_for(host.run("a", "q", on_event=seen))
    place = seen.of("finishRun")[0].checkpoint_id
    checkpoint = wait_for(bench.host([]).checkpoint(place, job_id=job.id))
    assert (checkpoint.context_tokens, checkpoint.context_window_usage) == (1000, None), (
        "nobody knows this model's size"
    )
