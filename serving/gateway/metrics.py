"""What the gateway counts, in Prometheus' form, in a registry of its own. Labels are closed sets: routes, not paths."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from plansmith.serving.gateway.ladder import Attempt, Outcome, Rung

_SECONDS = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class Computed(Protocol):
    """What an engine in this process has computed since it was made (`LocalEngine.computed`)."""

    @property
    def prefix_tokens(self) -> int: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def passes(self) -> int: ...
    @property
    def tokens(self) -> int: ...
    @property
    def forced(self) -> int: ...
    @property
    def seconds(self) -> float: ...
    @property
    def grammar_seconds(self) -> float: ...


class _Engine(Collector):
    """An engine's counts, asked when they are read."""

    def __init__(self, computed: Callable[[], Computed]) -> None:
        self._computed = computed

    def collect(self) -> Iterator[CounterMetricFamily]:
        found = self._computed()
        chosen = found.tokens - found.forced
        kinds = {"prefix": found.prefix_tokens, "prompt": found.prompt_tokens, "chosen": chosen, "forced": found.forced}
        tokens = CounterMetricFamily("plansmith_engine_tokens", "Tokens of the local engine.", labels=("kind",))
        for kind, value in kinds.items():
            tokens.add_metric([kind], value)
        yield tokens
        yield CounterMetricFamily("plansmith_engine_passes", "Forward passes of the local engine.", found.passes)
        about = "Time of the local engine's work, the grammar's part included."
        yield CounterMetricFamily("plansmith_engine_seconds", about, found.seconds)
        about = "Time of the local engine's work for grammars: compiling, masks, forced tokens."
        yield CounterMetricFamily("plansmith_engine_grammar_seconds", about, found.grammar_seconds)


class Metrics:
    """The counters of one gateway."""

    def __init__(
        self,
        *,
        waiting: Callable[[], float],
        under_way: Callable[[], float],
        computed: Callable[[], Computed] | None = None,
    ) -> None:
        """Make them; what is given is asked when they are read."""
        self.registry = CollectorRegistry()
        own = self.registry
        self.requests = Counter("plansmith_requests", "Requests.", ("route", "method", "status"), registry=own)
        self.request_seconds = Histogram(
            "plansmith_request_seconds",
            "From a request's start to its end.",
            ("route",),
            buckets=_SECONDS,
            registry=own,
        )
        self.attempts = Counter(
            "plansmith_attempts", "Rungs of the fallback ladder that were tried.", ("rung", "outcome"), registry=own
        )
        self.plan_seconds = Histogram(
            "plansmith_attempt_seconds", "Time of a rung.", ("rung",), buckets=_SECONDS, registry=own
        )
        self.plans = Counter(
            "plansmith_plans", "Queries, by the rung that gave the plan; none: no valid plan.", ("rung",), registry=own
        )
        self.findings = Counter("plansmith_findings", "Findings in plans, by fault.", ("fault",), registry=own)
        self.tokens = Counter("plansmith_tokens", "Tokens of all planners and agents.", ("kind",), registry=own)
        self.runs = Counter("plansmith_runs", "Runs, by how they ended.", ("status",), registry=own)
        self.steps = Counter("plansmith_steps", "Steps of runs, by how they ended.", ("status",), registry=own)
        self.refused = Counter("plansmith_refused", "Requests that were not taken on.", ("code",), registry=own)
        self.gone = Counter("plansmith_clients_gone", "Requests whose caller went away.", registry=own)
        self.ready = Gauge("plansmith_ready", "1 where a plan was made lately.", registry=own)
        Gauge("plansmith_queue", "Requests that wait for a place.", registry=own).set_function(waiting)
        Gauge("plansmith_under_way", "Plans and runs under way.", registry=own).set_function(under_way)
        if computed is not None:
            own.register(_Engine(computed))
        for rung in Rung:
            for outcome in Outcome:
                self.attempts.labels(rung, outcome)  # so that a rate over a rung that was never tried is 0, not absent

    def attempt(self, one: Attempt) -> None:
        """Take note of a rung."""
        self.attempts.labels(one.rung, one.outcome).inc()
        self.plan_seconds.labels(one.rung).observe(one.seconds)
        self.tokens.labels("prompt").inc(one.prompt_tokens)
        self.tokens.labels("completion").inc(one.completion_tokens)
        for finding in one.findings:
            self.findings.labels(str(finding["fault"])).inc()

    def text(self) -> bytes:
        """All of them, as Prometheus reads them."""
        return generate_latest(self.registry)
