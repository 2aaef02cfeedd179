"""Usage of generations: tokens, costs, charges, amounts of budgets, and what a Run has spent."""

from dataclasses import field
from functools import reduce
from math import ceil
from typing import Literal, assert_never

from pydantic import Field

from perstack.core.base.records import Record, falsy
from perstack.dataclass import dataclass, replace

BudgetName = Literal["maxCost", "maxTokens", "maxTime", "maxToolCalls"]


def amount_text(budget: BudgetName, value: float) -> str:
    """Return the text of a budget's amount: dollars, tokens, milliseconds or calls."""
    match budget:
        case "maxCost":
            return f"${value:,.4f}"
        case "maxTokens":
            return f"{value:,.0f} tokens"
        case "maxTime":
            return f"{value:,.0f} ms"
        case "maxToolCalls":
            return f"{value:,.0f} tool calls"
        case _:
            assert_never(budget)


_MAX_TOKENS = 10**12  # maximum plausible tokens of one generation


class Usage(Record):
    """The tokens of one generation, or a sum of several.

    `input_tokens` counts everything sent, including cached tokens; `output_tokens` everything generated, including
    reasoning. `total_tokens` is their sum unless the provider reports more.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = Field(default=0, exclude_if=falsy)
    total_tokens: int = 0
    cached_input_tokens: int = Field(default=0, exclude_if=falsy)
    cache_write_tokens: int = Field(default=0, exclude_if=falsy)  # stored by the provider for later, at a higher price
    assumed_tokens: int = Field(default=0, exclude_if=falsy)  # tokens of the total that are estimates: not reported
    cost_usd: float | None = Field(default=None, exclude_if=lambda value: value is None)  # nine decimals; None: unknown
    # uses of tools that the provider runs, and charges for, by the tool's name
    provider_tools: dict[str, int] = Field(default_factory=dict[str, int], exclude_if=falsy)

    @classmethod
    def of(
        cls, input_tokens: int, output_tokens: int, *, reasoning: int = 0, cached: int = 0, cache_writes: int = 0
    ) -> "Usage":
        """Return a Usage whose total is input plus output."""
        return cls(
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            reasoning_tokens=reasoning,
            total_tokens=input_tokens + output_tokens,
            cached_input_tokens=cached,
            cache_write_tokens=cache_writes,
        )

    @property
    def unpriced_tokens(self) -> int:
        """All tokens if their cost is unknown, otherwise 0."""
        return self.total_tokens if self.cost_usd is None else 0

    def with_estimates(self, sent_tokens: int, generated_tokens: int) -> "Usage":
        """Return the usage with estimates in place of counts that the endpoint did not report."""
        assumed_input = 0 if self.input_tokens else max(sent_tokens, self.total_tokens - self.output_tokens)
        assumed_output = 0 if self.output_tokens else generated_tokens
        assumed = assumed_input + assumed_output
        if not assumed:
            return self
        return self.model_copy(
            update={
                "input_tokens": self.input_tokens + assumed_input,
                "output_tokens": self.output_tokens + assumed_output,
                "total_tokens": max(self.total_tokens, self.input_tokens + self.output_tokens + assumed),
                "assumed_tokens": assumed,
            }
        )

    def plausible(self) -> "Usage":
        """Return the usage with each count limited to a plausible range, and a total no less than its parts."""
        counts = {name: count for name, count in vars(self).items() if isinstance(count, int)}
        corrected = {
            name: min(max(count, 0), _MAX_TOKENS) for name, count in counts.items() if not 0 <= count <= _MAX_TOKENS
        }
        min_total = sum((counts | corrected)[name] for name in ("input_tokens", "output_tokens"))
        if (counts | corrected)["total_tokens"] < min_total:
            corrected["total_tokens"] = min_total
        uses = {name: min(count, _MAX_TOKENS) for name, count in self.provider_tools.items() if count > 0}
        changes: dict[str, object] = (
            {**corrected, "provider_tools": uses} if uses != self.provider_tools else {**corrected}
        )
        return self.model_copy(update=changes) if changes else self

    def __add__(self, other_usage: "Usage") -> "Usage":
        """Return the sum; the cost is unknown only if both are."""
        return Usage(
            input_tokens=self.input_tokens + other_usage.input_tokens,
            output_tokens=self.output_tokens + other_usage.output_tokens,
            reasoning_tokens=self.reasoning_tokens + other_usage.reasoning_tokens,
            total_tokens=self.total_tokens + other_usage.total_tokens,
            cached_input_tokens=self.cached_input_tokens + other_usage.cached_input_tokens,
            cache_write_tokens=self.cache_write_tokens + other_usage.cache_write_tokens,
            assumed_tokens=self.assumed_tokens + other_usage.assumed_tokens,
            cost_usd=_sum(self.cost_usd, other_usage.cost_usd),
            provider_tools=_sum_uses(self.provider_tools, other_usage.provider_tools),
        )


def _sum_uses(first: dict[str, int], second: dict[str, int]) -> dict[str, int]:
    if not (first and second):
        return first or second
    return {name: first.get(name, 0) + second.get(name, 0) for name in dict.fromkeys((*first, *second))}


def _sum(first: float | None, second: float | None) -> float | None:
    """Return the rounded sum, so that the order of additions does not matter."""
    return second if first is None else first if second is None else round(first + second, 9)


NO_USAGE = Usage.model_construct()  # without its schema, which many commands do not need


class ModelShare(Record):
    """The usage of one of several models."""

    usage: Usage = NO_USAGE
    unpriced_tokens: int = Field(default=0, exclude_if=falsy)


class Charge(Record):
    """An amount charged against a budget because no usage was reported for it."""

    tokens: int = 0
    cost_usd: float | None = None  # price; None if none is known or needed

    def __add__(self, other: "Charge | None") -> "Charge":
        """Return the sum; None counts as nothing."""
        if other is None:
            return self
        return Charge(tokens=self.tokens + other.tokens, cost_usd=_sum(self.cost_usd, other.cost_usd))


def sum_charges(first: Charge | None, second: Charge | None) -> Charge | None:
    """Return the sum of two charges; None if both are."""
    return second if first is None else first + second


Cost = float | Literal["unknown"]  # US dollars, as far as prices are known


def cost_of(usage: Usage, unpriced_tokens: int) -> Cost | None:
    """Return the cost as far as prices are known; `unknown` if none is, None if nothing was used."""
    if usage.cost_usd is not None and (usage.cost_usd or not unpriced_tokens):
        return usage.cost_usd
    return "unknown" if unpriced_tokens or usage.total_tokens else None


def cost_text(usage: Usage, unpriced_tokens: int) -> str:
    """Return `$0.0123`, `at least $0.0123` or `cost unknown`; empty if nothing was used."""
    spent = cost_of(usage, unpriced_tokens)
    if spent is None:
        return ""
    if spent == "unknown":
        return "cost unknown"
    return f"{'at least ' if unpriced_tokens else ''}${spent:,.4f}"


NANO_PER_DOLLAR = 1_000_000_000


def nano(dollars: float) -> int:
    """Return dollars in billionths, rounded up so that no fraction exceeds a budget."""
    return ceil(round(dollars * NANO_PER_DOLLAR, 3))


@dataclass(frozen=True, slots=True)
class Amount:
    """An amount in tokens and billionths of a dollar."""

    tokens: int = 0
    nano: int = 0

    @classmethod
    def of_usage(cls, usage: Usage) -> "Amount":
        """Return the amount of a usage; an unknown cost counts as 0."""
        tokens = max(usage.total_tokens, usage.input_tokens + usage.output_tokens)
        return cls(tokens, nano(usage.cost_usd or 0))

    @classmethod
    def of_charge(cls, charge: Charge | None) -> "Amount":
        """Return the amount of a charge; None counts as nothing."""
        return NO_AMOUNT if charge is None else cls(charge.tokens, nano(charge.cost_usd or 0))

    def as_charge(self) -> Charge:
        """Return the amount in its recorded form."""
        return Charge(tokens=self.tokens, cost_usd=self.nano / NANO_PER_DOLLAR if self.nano else None)

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(self.tokens + other.tokens, self.nano + other.nano)

    def __sub__(self, other: "Amount") -> "Amount":
        """Return the difference, which may be negative."""
        return Amount(self.tokens - other.tokens, self.nano - other.nano)


NO_AMOUNT = Amount()


@dataclass(frozen=True, slots=True)
class BudgetRefusal:
    """The refusal of a call that does not fit into a budget, and would not if it waited for parallel calls."""

    budget: BudgetName
    expert: str | None  # None for the Job's budget
    limit: float
    spent: float
    needed: float

    @property
    def words(self) -> str:
        owner = "the Job" if self.expert is None else f"Expert {self.expert}"
        limit, spent, needed = (amount_text(self.budget, value) for value in (self.limit, self.spent, self.needed))
        if self.budget == "maxTime":
            return f"{owner} has used its time: {limit} of work"
        return f"{owner} may spend {limit}: {spent} are spent, and the next call could need {needed}"


# The spending of a Run. With a budget an attempt begins by reserving the most that it can cost. Reported usage replaces
# the reservation. If an attempt ends without reporting usage, or its process ends first, nobody knows what it has cost:
# the reservation becomes a charge. So usage, charges and reservations together are never less than the actual cost.


@dataclass(frozen=True)
class Spending:
    """The spending of one Run so far. A method returns the spending afterwards: the same object if nothing changed."""

    usage: Usage = field(default_factory=lambda: NO_USAGE)
    step_usage: Usage = field(default_factory=lambda: NO_USAGE)  # usage of the current step
    unpriced_tokens: int = 0  # tokens of `usage` whose price is unknown
    by_model: dict[str, ModelShare] = field(default_factory=dict[str, ModelShare])  # if the Run has several models
    tool_calls: int = 0  # number of decided calls of tools and delegates
    reserved: Charge | None = None  # maximum cost of the current generation; only with a budget
    # reservations of generations that tools request, by call id
    sampled: dict[str, Charge] = field(default_factory=dict[str, Charge])
    assumed: Charge | None = None  # charges for usage that nobody reported; only with a budget

    @property
    def reservations(self) -> Charge | None:
        """The sum of the reservations, charged until the actual usage is known; None without a budget."""
        return reduce(sum_charges, self.sampled.values(), self.reserved)

    def reserve(self, charge: Charge | None) -> "Spending":
        """Reserve the maximum cost of a new attempt. An earlier attempt without an outcome is charged in full."""
        if charge is None and self.reserved is None:
            return self
        return replace(self, assumed=sum_charges(self.assumed, self.reserved), reserved=charge)

    def reserve_sample(self, call_id: str, charge: Charge) -> "Spending":
        """Reserve the maximum cost of a generation that a tool requests during this call."""
        return replace(self, sampled={**self.sampled, call_id: charge + self.sampled.get(call_id)})

    def add(self, usage: Usage | None, charge: Charge | None = None, *, model: str = "") -> "Spending":
        """Add reported usage, and a charge for unreported usage. `model` is the model used, if the Run has several."""
        after = self if charge is None else replace(self, assumed=sum_charges(self.assumed, charge))
        if usage is None:
            return after
        by_model = self.by_model
        if model:
            share = by_model.get(model, ModelShare())
            share = ModelShare(usage=share.usage + usage, unpriced_tokens=share.unpriced_tokens + usage.unpriced_tokens)
            by_model = {**by_model, model: share}
        return replace(
            after,
            usage=self.usage + usage,
            step_usage=self.step_usage + usage,
            unpriced_tokens=self.unpriced_tokens + usage.unpriced_tokens,
            by_model=by_model,
        )

    def settle(self, *, is_charged: bool) -> "Spending":
        """End all attempts. With `is_charged` the reservation of the current generation becomes a charge."""
        if self.reserved is None and not self.sampled:
            return self
        unsettled = self.reservations if is_charged else replace(self, reserved=None).reservations
        return replace(self, assumed=sum_charges(self.assumed, unsettled), reserved=None, sampled={})

    def end_call(self, call_id: str) -> "Spending":
        """Release the reservations of a call whose usage and charge are known."""
        if call_id not in self.sampled:
            return self
        return replace(self, sampled={sample: charge for sample, charge in self.sampled.items() if sample != call_id})


NO_SPENDING = Spending()


def unreported_charge(reserved: Charge, usage: Usage) -> Charge:
    """Return the difference between a reservation and incomplete usage, as a charge."""
    cost = max(0.0, (reserved.cost_usd or 0) - (usage.cost_usd or 0))
    return Charge(tokens=max(0, reserved.tokens - usage.total_tokens), cost_usd=cost or None)
