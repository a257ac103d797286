"""What the gateway counts, in Prometheus' form, in a registry of its own. Labels are closed sets: routes, not paths."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest

from plansmith.serving.gateway.ladder import Attempt, Outcome, Rung

_SECONDS = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class Metrics:
    """The counters of one gateway."""

    def __init__(self, *, waiting: Callable[[], float], under_way: Callable[[], float]) -> None:
        """Make them; `waiting` and `under_way` are asked when they are read."""
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
