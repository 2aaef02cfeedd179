"""Five hundred steps in a window of 8,000 tokens: the task, the todos and ten early facts are there at the end."""

from __future__ import annotations

from pathlib import Path

import pytest
from hosts import Bench, Seen, expert, results, wait_for
from long_runs import SmallModel, texts_in

from perstack.core.definitions.models import Price
from perstack.ports.provider import GenerationRequest
from perstack.testing.scripted import ScriptedProvider, TurnLike, text, tool, turn

WINDOW = 8_000
STEPS = 500
FACTS = {number: f"zephyr{number * 7919}" for number in range(1, 11)}
"""The facts told in the first steps, by number."""
BUDGET = 8.0
PRICE = Price(name="scripted/scripted", input=1, output=10)


def at_work(request: GenerationRequest) -> TurnLike:
    """Return the model's turn: it records the facts, works for long, then asks for each fact and repeats the answer."""
    step = request.step
    if step == 1:
        return turn(tool("todo", {"newTodos": ["tell the ten facts"]}))
    if step <= 11:
        fact = f"fact number {step - 1}: its word is {FACTS[step - 1]}. "
        return turn(tool("think", {"thought": fact + "and so on " * 40}), usage=(0, 120))
    if step <= STEPS - 12:
        return turn(tool("think", {"thought": f"work {step}: " + "more of it " * (20 + step % 30)}), usage=(0, 100))
    if step <= STEPS - 2:
        return turn(tool("recallHistory", {"text": f"fact number {step - STEPS + 12}: word"}), usage=(0, 30))
    if step == STEPS - 1:
        return turn(tool("todo", {"completedTodos": [0]}))
    words = [word for word in FACTS.values() if word in texts_in(request)]
    return turn(tool("attemptCompletion", {"result": f"found {' '.join(words)}"}))


def check(bench: Bench, reply, experts: tuple, run: str) -> None:
    def careful(request: GenerationRequest) -> TurnLike:
        if request.expert_key != "boss" and request.step == STEPS - 12:
            calls = [c for m in request.messages if m.type == "expertMessage" for c in m.tool_calls]
            assert not any(word in texts_in(request) + str(calls) for word in FACTS.values())
            assert "tell the ten facts" in texts_in(request)
            assert "what was long ago" in texts_in(request)
        return reply(request)

    seen, model = Seen(), SmallModel(careful, WINDOW)
    provider = ScriptedProvider(model)
    host = bench.host(provider, *experts, prices=(PRICE,), max_cost=BUDGET, max_steps=0)
    job = wait_for(host.run(experts[0].key, "say what was long ago", on_event=seen), 240)
    assert (job.status, job.error) == ("completed", None)
    assert model.refused == 0
    assert max(model.sent) <= WINDOW
    compactions = seen.of("compactHistory", run=run)
    assert len(compactions) >= 10
    answers = results(seen, "recallHistory")
    assert len(answers) == 10
    for number, word in FACTS.items():
        assert word in answers[number - 1]
    assert set(FACTS.values()) <= set((seen.of("finishRun", run=run)[0].text).split())
    assert seen.of("attemptCompletion", run=run)[-1].remaining_todos == ()
    assert 0 < job.usage.cost_usd <= BUDGET
    assert job.usage.input_tokens == sum(model.sent) + sum(model.summaries)
    assert wait_for(host.audit.replay(job.id), 120).findings == ()
    assert wait_for(host.audit.verify(job.id), 120).findings == ()


@pytest.mark.timeout(600)
def test_the_coordinator_neither_dies_of_its_history_nor_forgets_its_task(tmp_path: Path) -> None:
    check(Bench(tmp_path, "sqlite:perstack/state.db"), at_work, (expert("a", context_window=WINDOW),), "-1")


@pytest.mark.timeout(600)
def test_a_delegate_neither_dies_of_its_history_nor_forgets_its_task(tmp_path: Path) -> None:
    def reply(request: GenerationRequest) -> TurnLike:
        if request.expert_key == "boss":
            asks = turn(tool("worker", {"query": "say what was long ago"}))
            return text("ok") if request.step > 1 else asks
        return at_work(request)

    boss, worker = expert("boss", delegates=("worker",)), expert("worker", context_window=WINDOW)
    check(Bench(tmp_path, "file:perstack"), reply, (boss, worker), "-2")
