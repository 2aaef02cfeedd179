"""A worker's metrics in the Prometheus format. Model names are bounded, and no label names a Job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from perstack.ports.dispatcher import Load
from perstack.workers.reports import WorkerCounters

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class _Figures(Collector):
    def __init__(self, tally: WorkerCounters, load: Load | None, now: int) -> None:
        self._tally = tally
        self._load = load
        self._now = now

    def collect(self) -> Iterator[Metric]:
        tally = self._tally
        yield from self._dispatcher_metrics()
        yield _gauge("perstack_jobs_running", "Jobs that this worker drives now.", tally.running)
        yield _counter("perstack_steps", "Steps that this worker has finished.", tally.steps)
        tokens = (((kind, model), count) for (kind, model), count in sorted(tally.tokens.items()))
        yield _counters("perstack_tokens", "Tokens by kind; each is counted in one kind.", ("kind", "model"), tokens)
        costs = (((model,), cost) for model, cost in sorted(tally.cost_usd.items()))
        yield _counters("perstack_cost_usd", "US dollars spent, as far as prices are known.", ("model",), costs)
        yield _counter("perstack_retries", "Generations that failed and were tried again.", tally.retries)
        yield _counter("perstack_takeovers", "Jobs taken over from workers that fell silent.", tally.takeovers)

    def _dispatcher_metrics(self) -> Iterator[Metric]:
        """Yield the dispatcher's metrics, equal on every worker; only `up` if it does not answer."""
        load = self._load
        yield _gauge("perstack_dispatcher_up", "Whether the dispatcher has answered this request.", load is not None)
        if load is None:
            return
        oldest = 0.0 if load.oldest is None else max(0.0, (self._now - load.oldest) / 1000)
        yield _gauge("perstack_jobs_queued", "Jobs that are due and wait for a worker.", load.queued)
        yield _gauge("perstack_jobs_later", "Jobs that are not due yet.", load.later)
        yield _gauge("perstack_jobs_oldest_seconds", "Seconds that the longest-waiting Job has waited.", oldest)


def metrics_text(tally: WorkerCounters, load: Load | None, now: int) -> bytes:
    """Return all metrics. `load` is None if the dispatcher did not answer; `now` is in milliseconds since 1970."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Figures(tally, load, now))
    return generate_latest(registry)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=value)


def _counters(name: str, text: str, labels: tuple[str, ...], values: Iterable[tuple[tuple[str, ...], float]]) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    for of, value in values:
        family.add_metric(of, value)
    return family
