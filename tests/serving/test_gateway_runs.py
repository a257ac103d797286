"""Runs behind the gateway, over real HTTP: results, live events, who owns them, a person's word, restarts."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from plansmith.contract.catalog import Effect
from plansmith.serving.runs.answer import TemplateAnswerer
from plansmith.serving.runs.journal import Journal
from plansmith.serving.workers.base import CallInfo
from plansmith.serving.workers.registry import Registry
from tests.serving.gateway_parts import (
    INVALID,
    OSLO,
    WEATHER,
    Served,
    events_of,
    key,
    parts,
    says,
    served,
    until,
)
from tests.serving.run_parts import Made, echo, hangs


def test_a_run_gives_results_and_an_answer_and_can_be_looked_up():
    with served(parts(says(OSLO), answerer=TemplateAnswerer())) as gateway:
        found = gateway.post("/v1/runs", {"query": "Weather in Oslo?"}).json()
        assert (found["status"], found["rung"]) == ("complete", "planner")
        assert found["steps"][0]["result"] == {"city": "Oslo", "summary": "rain"}
        assert "No model wrote this" in found["answer"]["text"]
        assert gateway.client.get(f"/v1/runs/{found['run_id']}").json() == found
        assert gateway.client.get("/v1/runs/anybody-1234").status_code == 404
        counts = gateway.metrics()
    assert counts['plansmith_runs_total{status="complete"}'] == 1
    assert counts['plansmith_steps_total{status="done"}'] == 1
    assert counts['plansmith_requests_total{method="POST",route="/v1/runs",status="200"}'] == 1


def test_a_given_plan_is_run_and_no_planner_asked():
    planner = says([])
    with served(parts(planner)) as gateway:
        found = gateway.post("/v1/runs", {"plan": OSLO}).json()
        assert (found["status"], found["rungs"], planner.asked) == ("complete", [], [])
        refused = gateway.post("/v1/runs", {"plan": INVALID}).json()
        assert (refused["status"], refused["steps"]) == ("refused", [])
        assert refused["findings"]
        assert gateway.post("/v1/runs", {}).status_code == 400


def test_a_query_without_a_valid_plan_runs_nothing():
    before = len(WEATHER.calls)
    with served(parts(says(INVALID))) as gateway:
        found = gateway.post("/v1/runs", {"query": "Weather?"}).json()
        assert gateway.client.get(f"/v1/runs/{found['run_id']}").json()["status"] == "refused"
    assert (found["status"], found["plan"], len(found["rungs"])) == ("refused", None, 2)
    assert found["missing"]
    assert len(WEATHER.calls) == before


def test_a_runs_events_come_as_they_happen_and_the_result_last():
    with served(parts(says(OSLO))) as gateway:
        headers = {"accept": "text/event-stream"}
        with gateway.client.stream("POST", "/v1/runs", json={"query": "Weather?"}, headers=headers) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            events = events_of(response.iter_lines())
    assert [kind for kind, _ in events] == [
        *(
            "run",
            "attempt",
            "plan",
            "run_started",
            "plan_ready",
            "step_started",
            "step_finished",
            "run_finished",
            "result",
        ),
    ]
    assert {data["run_id"] for kind, data in events if "run_id" in data} == {events[0][1]["run_id"]}
    assert events[-1][1]["status"] == "complete"


def test_what_breaks_under_a_listener_is_its_last_event_without_details():
    with served(parts(says(RuntimeError("canary-word")))) as gateway:
        headers = {"accept": "text/event-stream"}
        with gateway.client.stream("POST", "/v1/runs", json={"query": "x"}, headers=headers) as response:
            events = events_of(response.iter_lines())
        assert gateway.client.get(f"/v1/runs/{events[0][1]['run_id']}").json()["status"] == "failed"
    assert [kind for kind, _ in events] == ["run", "error"]
    assert events[-1][1]["error"]["code"] == "internal"
    assert "canary-word" not in str(events)


def test_a_listener_who_leaves_after_a_step_began_does_not_stop_the_run():
    gate = threading.Event()

    async def slow(args: dict[str, Any], info: CallInfo) -> Any:
        await asyncio.to_thread(gate.wait, 20)
        return "done"

    registry = Registry("s", [Made("slow", slow, effect=Effect.WRITE)])
    plan = [{"type": "slow", "args": {}}]
    with served(parts(says([]), registry=registry)) as gateway:
        headers = {"accept": "text/event-stream"}
        with gateway.client.stream("POST", "/v1/runs", json={"plan": plan}, headers=headers) as response:
            lines = response.iter_lines()
            run_id = json.loads([next(lines) for _ in range(2)][1].removeprefix("data: "))["run_id"]
            while "step_started" not in next(lines):
                pass
        assert gateway.client.get(f"/v1/runs/{run_id}").json()["status"] == "running"
        gate.set()
        until(lambda: gateway.client.get(f"/v1/runs/{run_id}").json()["status"] == "complete")


def test_a_run_belongs_to_its_key():
    (alice, one), (bob, two) = key("alice"), key("bob")
    with served(parts(says(OSLO)), {"keys": [one, two]}) as gateway:
        found = gateway.post("/v1/runs", {"query": "x"}, authorization=f"Bearer {alice}").json()

        def get(who):
            return gateway.client.get(f"/v1/runs/{found['run_id']}", headers={"authorization": f"Bearer {who}"})

        assert get(alice).json()["status"] == "complete"
        assert get(bob).status_code == 404


def test_permissions_are_the_keys():
    locked = Registry("l", [Made("locked", echo, effect=Effect.READ, permission="inside")])
    (alice, one), (bob, two) = key("alice", permissions=["inside"]), key("bob")
    plan = {"plan": [{"type": "locked", "args": {}}]}
    with served(parts(says([]), registry=locked), {"keys": [one, two]}) as gateway:

        def run(who):
            return gateway.post("/v1/runs", plan, authorization=f"Bearer {who}").json()

        assert run(alice)["status"] == "complete"
        refused = run(bob)
    assert (refused["status"], refused["refusals"][0]["failure"]["code"]) == ("refused", "FORBIDDEN")


def test_a_step_that_waits_for_a_person_goes_on_with_their_word_also_after_a_restart(tmp_path: Path):
    order = Made("order", echo, effect=Effect.WRITE, approval=True)
    registry = Registry("o", [order])
    plan = {"plan": [{"type": "order", "args": {"n": 1}}]}

    def with_journal(work: Any) -> Any:
        journal = Journal(tmp_path / "runs.sqlite")
        try:
            with served(parts(says([]), registry=registry, journal=journal)) as gateway:
                return work(gateway)
        finally:
            asyncio.run(journal.aclose())

    def begin(gateway: Served) -> str:
        found = gateway.post("/v1/runs", plan).json()
        assert (found["status"], order.calls) == ("awaiting_approval", [])
        return found["run_id"]

    def go_on(gateway: Served) -> None:
        assert gateway.client.get(f"/v1/runs/{run_id}").json()["status"] == "awaiting_approval"
        found = gateway.post(f"/v1/runs/{run_id}/resume", {"approve": {"0": True}}).json()
        assert (found["status"], found["steps"][0]["result"]) == ("complete", {"n": 1})
        again = gateway.post(f"/v1/runs/{run_id}/resume", {"approve": {"0": True}}).json()
        assert (again["status"], len(order.calls)) == ("complete", 1)
        assert gateway.post("/v1/runs/anybody-nothing/resume", {}).status_code == 409
        assert gateway.post(f"/v1/runs/{run_id}/resume", {"approve": {"x": True}}).status_code == 400

    run_id = with_journal(begin)
    with_journal(go_on)


def test_a_run_ends_within_the_requests_time():
    registry = Registry("h", [Made("stuck", hangs, effect=Effect.READ)])
    with served(parts(says([]), registry=registry, answerer=TemplateAnswerer())) as gateway:
        found = gateway.post("/v1/runs", {"plan": [{"type": "stuck", "args": {}}], "deadline_s": 0.5}).json()
    assert (found["status"], found["steps"][0]["failure"]["code"]) == ("failed", "TIMEOUT")
    assert found["answer"]["for_person"]


def test_a_gateway_without_workers_plans_and_runs_nothing():
    with served(parts(says(OSLO), registry=None)) as gateway:
        assert gateway.post("/v1/plans", {"query": "x"}).json()["valid"]
        response = gateway.post("/v1/runs", {"query": "x"})
        assert (response.status_code, "--workers" in response.json()["error"]["message"]) == (404, True)
        assert gateway.client.get("/v1/catalog").json()["runs"] is False


def test_spans_lead_from_the_request_to_each_step(monkeypatch: pytest.MonkeyPatch):
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    with served(parts(says(INVALID, OSLO))) as gateway:
        gateway.post("/v1/runs", {"query": "Weather in Oslo?"}, x_request_id="mine-7")
    spans = {found.name: found for found in exporter.get_finished_spans()}
    request, run, step_ = (spans[f"plansmith.{name}"] for name in ("request", "run", "step"))
    assert dict(request.attributes) == {"request_id": "mine-7", "path": "/v1/runs", "status": 200}
    attempts = [dict(found.attributes) for found in exporter.get_finished_spans() if found.name == "plansmith.attempt"]
    assert attempts == [{"rung": "planner", "outcome": "invalid"}, {"rung": "reask", "outcome": "valid"}]
    assert step_.parent.span_id == run.context.span_id
    assert run.parent.span_id == request.context.span_id
    assert "Oslo" not in str([dict(found.attributes) for found in exporter.get_finished_spans()])
