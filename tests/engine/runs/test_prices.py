"""Costs of tokens, if the price is known."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hosts import Bench, Seen, expert, wait_for
from hypothesis import given
from hypothesis import strategies as st

from perstack.core.base.usage import Usage
from perstack.core.messages.messages import ExpertMessage
from perstack.engine.plugins.providers_and_prices import Prices
from perstack.engine.plugins.registry import load_plugins
from perstack.ports.provider import Generation, PriceList
from perstack.testing.scripted import ScriptedProvider, text, tool


def cost_and_window(provider: str, model: str, usage: Usage) -> tuple[Usage, int | None]:
    prices = Prices(load_plugins().providers)
    return wait_for(prices.cost_and_window(provider, model, Generation(ExpertMessage(), usage, "stop")))


def test_a_known_model_has_a_cost_and_a_context_size() -> None:
    usage, window = cost_and_window("anthropic", "claude-sonnet-4-5", Usage.of(1000, 100, cached=500, cache_writes=100))
    # 400 sent at 3, 500 read from the cache at 0.3, 100 written to it at 3.75, 100 generated at 15 dollars a million
    assert usage.cost_usd == pytest.approx((400 * 3 + 500 * 0.3 + 100 * 3.75 + 100 * 15) / 1e6)
    assert window == 200_000


@pytest.mark.parametrize(
    ("provider", "model"), [("scripted", "x"), ("local", "y"), ("openai", "no-such-model-of-theirs")]
)
def test_what_is_not_known_costs_nothing_and_says_nothing(provider: str, model: str) -> None:
    usage, window = cost_and_window(provider, model, Usage.of(5, 5))
    assert (usage.cost_usd, window) == (None, None)


def test_one_job_may_use_models_with_published_prices_and_without() -> None:
    async def both() -> list[float | None]:
        prices = Prices(load_plugins().providers)
        reply = Generation(ExpertMessage(), Usage.of(1000, 100), "stop")
        asked = [("local", "y"), ("anthropic", "claude-sonnet-4-5"), ("local", "y")]
        return [(await prices.cost_and_window(*one, reply))[0].cost_usd for one in asked]

    first, second, third = wait_for(both())
    assert (first, third) == (None, None)
    assert second is not None


def test_prices_are_imported_while_the_first_model_with_published_ones_works() -> None:
    program = (
        "import asyncio, sys\n"
        "from perstack.engine.plugins.registry import load_plugins\n"
        "from perstack.engine.plugins.providers_and_prices import Prices\n"
        "providers = load_plugins().providers\n"
        "async def main():\n"
        "    prices = Prices(providers)\n"
        "    prices.prepare('ollama')\n"
        "    await asyncio.get_running_loop().shutdown_default_executor()\n"
        "    print('genai_prices' in sys.modules)\n"
        "asyncio.run(main())\n"
        "async def again():\n"
        "    prices = Prices(providers)\n"
        "    prices.prepare('anthropic')\n"
        "    await asyncio.get_running_loop().shutdown_default_executor()\n"
        "    print('genai_prices' in sys.modules)\n"
        "asyncio.run(again())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["False", "True"]


def test_a_provider_of_a_plugin_says_what_its_models_cost(bench: Bench) -> None:
    class Sold(ScriptedProvider):
        class prices:
            @staticmethod
            def load() -> PriceList:
                return lambda model, usage: (usage.total_tokens / 1000, 5000 if model == "big" else None)

    host = bench.host(Sold([text("ok", usage=(900, 100))]), expert("a"), model="big")
    job = wait_for(host.run("a", "q"))
    assert job.usage.cost_usd == 1.0
    (last,) = [one for one in wait_for(host.exports.document(job.id))["checkpoints"] if one["status"] == "completed"]
    assert last["contextWindowUsage"] == 0.2


@pytest.mark.parametrize("fails_at", ["load", "look up"])
def test_prices_that_cannot_be_had_are_named_once_and_lose_no_reply(bench: Bench, capsys, fails_at: str) -> None:
    class Broken(ScriptedProvider):
        class prices:
            @staticmethod
            def load() -> PriceList:
                if fails_at == "load":
                    raise ImportError("no list\nof prices")
                return lambda model, usage: (1 / 0, None)

    host = bench.host(Broken([tool("todo", {"newTodos": ["t"]}), text("ok")]), expert("a"))
    job = wait_for(host.run("a", "q"))
    assert (job.status, job.text, job.usage.cost_usd) == ("completed", "ok", None)
    assert capsys.readouterr().err.count("the prices of models of scripted are unknown") == 1


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
    checkpoint = wait_for(bench.host([]).jobs.checkpoint(place, job_id=job.id))
    assert (checkpoint.context_tokens, checkpoint.context_window_usage) == (1000, None), (
        "nobody knows this model's size"
    )
