"""Runs of hand-made plans: order, references, statuses, retries, breakers, permissions, approval, deadlines."""

from __future__ import annotations

import asyncio
import importlib
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from plansmith.contract.catalog import Catalog, Effect
from plansmith.serving.runs.breaker import Breaker
from plansmith.serving.runs.config import ApprovalMode, BreakerConfig
from plansmith.serving.runs.events import EventKind, RunEvent, RunResult, RunStatus, StepStatus
from plansmith.serving.runs.turns import Turns
from plansmith.serving.workers.base import CallFailure, FailureCode, WorkerError
from tests.serving.run_parts import CALM, Made, echo, from_, hangs, orchestrator, raises, step, swallows


class Odd(BaseException):
    pass


def statuses(result: RunResult) -> list[str]:
    return [one.status.value for one in result.steps]


def test_a_step_starts_as_soon_as_its_own_dependencies_are_done() -> None:
    async def main() -> RunResult:
        gate = asyncio.Event()

        async def slow(args: dict[str, Any], info: Any) -> Any:
            await gate.wait()

        async def opens(args: dict[str, Any], info: Any) -> Any:
            gate.set()

        plan = [step("slow"), step("echo"), step("opens", after=[1])]
        return await orchestrator(Made("slow", slow), Made("echo", echo), Made("opens", opens)).run(plan, deadline_s=5)

    assert asyncio.run(main()).status is RunStatus.COMPLETE


def test_no_more_steps_run_at_once_than_the_limit() -> None:
    now, most = 0, 0

    async def counts(args: dict[str, Any], info: Any) -> Any:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.001)
        now -= 1

    config = CALM.model_copy(update={"concurrency": 3})
    asyncio.run(orchestrator(Made("w", counts), config=config).run([step("w")] * 12))
    assert most == 3


@pytest.mark.parametrize("count", [2, 11, 30])
def test_references_are_typed_nested_and_resolved_once(count: int) -> None:
    """Known problem 13: two in one argument, #1 inside #10, lists that become text, references in results."""
    worker = Made("echo", echo)
    plan = [step("echo", n=index, trap={"$literal": {"$from": "/0"}}) for index in range(count)]
    last = count - 1
    plan.append(
        step("echo", many=[from_(f"/{last}/n"), from_("/0")], text={"$format": "{0}-{1}", "with": [from_("/1/n"), 7]})
    )
    config = CALM.model_copy(update={"max_steps": 40})
    result = asyncio.run(orchestrator(worker, config=config).run(plan))
    assert result.results[count] == {"many": [last, {"n": 0, "trap": {"$from": "/0"}}], "text": "1-7"}


def test_a_worker_cannot_change_what_others_get() -> None:
    async def spoils(args: dict[str, Any], info: Any) -> Any:
        args["x"]["n"] = "spoilt"
        return args

    plan = [step("echo", n=1), step("spoils", x=from_("/0")), step("echo", after=[1], x=from_("/0"))]
    result = asyncio.run(orchestrator(Made("echo", echo), Made("spoils", spoils)).run(plan))
    assert result.results[2] == {"x": {"n": 1}}
    assert result.plan == plan


def test_values_from_results_are_validated_again() -> None:
    number = {"type": "object", "properties": {"n": {"type": "number"}}, "additionalProperties": False}
    target = Made("wants", echo, args=number)
    result = asyncio.run(
        orchestrator(Made("echo", echo), target).run([step("echo", n="x"), step("wants", n=from_("/0/n"))])
    )
    assert (statuses(result), target.calls) == (["done", "failed"], [])
    assert result.steps[1].failure is not None
    assert result.steps[1].failure.code == FailureCode.INVALID_ARGUMENT
    assert "'n'" in result.steps[1].failure.message


@pytest.mark.parametrize(
    "error",
    [ValueError("x"), WorkerError("MINE", "no"), Odd(), SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()],
    ids=lambda error: type(error).__name__,
)
def test_a_failed_step_skips_its_dependants_and_others_go_on(error: BaseException) -> None:
    """Known problem 14: an error is no evidence."""
    after = Made("after", echo)
    plan = [step("bad"), step("echo"), step("after", x=from_("/0")), step("after", after=[2])]
    result = asyncio.run(orchestrator(Made("bad", raises(error)), Made("echo", echo), after).run(plan))
    assert result.status is RunStatus.PARTIAL
    assert statuses(result) == ["failed", "done", "skipped", "skipped"]
    assert after.calls == []
    assert result.steps[2].reason == "it needs step 0 ('bad'), which failed."
    assert len(result.missing) == 3


def test_a_run_without_any_result_failed_and_one_without_steps_is_complete() -> None:
    maker = orchestrator(Made("bad", raises(ValueError("x"))))
    assert asyncio.run(maker.run([step("bad")])).status is RunStatus.FAILED
    assert asyncio.run(maker.run("[]")).status is RunStatus.COMPLETE


@pytest.mark.parametrize("junk", [object(), float("nan"), {1: 2}, {"a": {1, 2}}, "x" * 3000])
def test_a_result_that_is_no_json_or_too_large_is_a_failure(junk: Any) -> None:
    async def gives(args: dict[str, Any], info: Any) -> Any:
        return junk

    config = CALM.model_copy(update={"max_result_bytes": 1000})
    (one,) = asyncio.run(orchestrator(Made("w", gives), config=config).run([step("w")])).steps
    assert one.failure is not None
    assert one.failure.code == FailureCode.INVALID_RESULT


def test_only_retryable_failures_of_repeatable_workers_are_tried_again() -> None:
    def calls(worker: Made) -> tuple[int, str]:
        result = asyncio.run(orchestrator(worker).run([step("w")]))
        return len(worker.calls), result.steps[0].status.value

    again = WorkerError("BUSY", retryable=True)
    assert calls(Made("w", raises(again, again))) == (3, "done")
    assert calls(Made("w", raises(again, again, again))) == (3, "failed")
    assert calls(Made("w", raises(WorkerError("NO")))) == (1, "failed")
    assert calls(Made("w", raises(again), effect=Effect.WRITE)) == (1, "failed")
    assert calls(Made("w", raises(ConnectionError()), effect=Effect.WRITE)) == (1, "outcome_unknown")
    written = Made("w", raises(again), effect=Effect.WRITE, idempotent=True)
    assert calls(written) == (2, "done")
    keys = {info.idempotency_key for _, info in written.calls}
    assert len(keys) == 1
    assert None not in keys
    assert [info.attempt for _, info in written.calls] == [1, 2]


def test_a_breaker_opens_probes_and_closes() -> None:
    now = 0.0
    breaker = Breaker(BreakerConfig(failures=2, cool_s=10), clock=lambda: now)
    down = CallFailure(code="NETWORK", message="", retryable=True)
    for _ in range(2):
        assert breaker.refusal() is None
        breaker.ended(down)
    assert breaker.refusal() is not None
    now = 10.0
    assert breaker.refusal() is None
    assert breaker.refusal() is not None, "one probe at a time"
    breaker.ended(down)
    assert breaker.refusal() is not None
    now = 20.0
    assert breaker.refusal() is None
    breaker.ended(None)
    assert breaker.refusal() is None


def test_runs_of_one_orchestrator_share_a_workers_breaker() -> None:
    worker = Made("w", raises(*[ValueError("x")] * 9))
    config = CALM.model_copy(update={"breaker": BreakerConfig(failures=2, cool_s=60)})
    maker = orchestrator(worker, config=config)

    async def main() -> list[RunResult]:
        return [await maker.run([step("w")]) for _ in range(4)]

    codes = [one.steps[0].failure.code for one in asyncio.run(main()) if one.steps[0].failure is not None]
    assert codes == ["INTERNAL", "INTERNAL", "UNAVAILABLE", "UNAVAILABLE"]
    assert len(worker.calls) == 2


def test_nothing_runs_where_the_plan_is_invalid_forbidden_or_without_code() -> None:
    echo_, locked = Made("echo", echo), Made("locked", echo, permission="mail")
    maker = orchestrator(echo_, locked)
    invalid = asyncio.run(maker.run([step("echo"), step("nobody")]))
    assert (invalid.status, invalid.steps) == (RunStatus.REFUSED, ())
    assert [found["fault"] for found in invalid.findings] == ["unknown_worker"]
    forbidden = asyncio.run(maker.run([step("echo"), step("locked")]))
    assert [one.failure.code for one in forbidden.refusals] == ["FORBIDDEN"]
    more = Catalog("more", [echo_.worker, Made("ghost", echo).worker])
    ghost = asyncio.run(orchestrator(echo_, catalog=more).run([step("echo"), step("ghost")]))
    assert [one.failure.code for one in ghost.refusals] == ["NOT_FOUND"]
    assert echo_.calls == []
    allowed = CALM.model_copy(update={"permissions": frozenset({"mail"})})
    assert asyncio.run(orchestrator(locked, config=allowed).run([step("locked")])).status is RunStatus.COMPLETE


def test_approval_is_asked_and_obeyed() -> None:
    def ended(said: Any = None, mode: ApprovalMode = ApprovalMode.ASK) -> tuple[str, int]:
        async def ask(request: Any) -> bool:
            if isinstance(said, Exception):
                raise said
            return said

        worker = Made("w", echo, approval=True)
        config = CALM.model_copy(update={"approval": mode})
        maker = orchestrator(worker, config=config, approve=None if said is None else ask)
        return asyncio.run(maker.run([step("w")])).steps[0].status.value, len(worker.calls)

    assert ended(True) == ("done", 1)
    for case in (ended(False), ended(ValueError()), ended(), ended(True, ApprovalMode.REFUSE)):
        assert case == ("failed", 0)
    assert ended(mode=ApprovalMode.GRANT) == ("done", 1)


async def blocks_a_thread(args: dict[str, Any], info: Any) -> Any:
    await asyncio.to_thread(time.sleep, 0.6)


@pytest.mark.parametrize("code", [hangs, swallows, blocks_a_thread])
@pytest.mark.parametrize("limit", ["of the worker", "of the run"])
def test_a_run_ends_in_time_whatever_its_workers_do(code: Any, limit: str) -> None:
    """Known problem 22."""
    timeout, deadline = (0.05, 5.0) if limit == "of the worker" else (30.0, 0.2)
    config = CALM.model_copy(update={"retries": CALM.retries.model_copy(update={"max_attempts": 1})})
    bad, echo_ = Made("bad", code, timeout_s=timeout), Made("echo", echo)
    plan = [step("bad"), step("echo"), step("echo", x=from_("/0"))]

    async def main() -> tuple[RunResult, float]:
        begun = time.monotonic()
        result = await orchestrator(bad, echo_, config=config).run(plan, deadline_s=deadline)
        return result, time.monotonic() - begun

    result, took = asyncio.run(main())
    assert took < 0.5
    assert statuses(result) == ["failed", "done", "skipped"]
    assert result.steps[0].failure is not None
    assert result.steps[0].failure.code == "TIMEOUT"
    assert (result.abandoned > 0) == (code is swallows)


def test_a_write_that_timed_out_has_an_unknown_outcome() -> None:
    worker = Made("w", hangs, timeout_s=0.02, effect=Effect.WRITE)
    result = asyncio.run(orchestrator(worker).run([step("w"), step("w", after=[0])]))
    assert (statuses(result), len(worker.calls)) == (["outcome_unknown", "skipped"], 1)


def test_cancellation_from_outside_is_passed_on_and_leaves_no_task() -> None:
    async def main() -> int:
        run = asyncio.ensure_future(orchestrator(Made("w", hangs)).run([step("w")] * 3))
        await asyncio.sleep(0.02)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        await asyncio.sleep(0)
        return len(asyncio.all_tasks()) - 1

    assert asyncio.run(main()) == 0


def test_events_come_in_order_and_a_broken_listener_harms_nobody() -> None:
    again = WorkerError("BUSY", retryable=True)
    workers = Made("w", raises(again)), Made("bad", raises(ValueError("x")))
    plan = [step("w"), step("bad", after=[0]), step("w", after=[1])]

    async def main() -> list[RunEvent]:
        return [event async for event in orchestrator(*workers).stream(plan)]

    kinds = [event.kind.value for event in asyncio.run(main())]
    steps = "step_started step_retried step_finished step_started step_failed step_skipped"
    assert kinds == f"run_started plan_ready {steps} run_finished".split()

    def broken(event: RunEvent) -> None:
        raise ValueError(event.kind)

    assert asyncio.run(orchestrator(Made("w", echo)).run([step("w")], on_event=broken)).status is RunStatus.COMPLETE


def test_spans_tell_run_and_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    asyncio.run(orchestrator(Made("w", raises(ValueError("x")))).run([step("w")], run_id="r"))
    step_, run = exporter.get_finished_spans()
    assert (step_.name, run.name, run.attributes["status"]) == ("plansmith.step", "plansmith.run", "failed")
    assert step_.parent.span_id == run.context.span_id
    assert dict(step_.attributes) == {
        "plansmith.run": "r",
        "plansmith.step": 0,
        "worker": "w",
        "status": "failed",
        "attempts": 1,
    }
    importlib.import_module("plansmith.serving.runs.tracing")


FATES = ["ok", "fail", "busy", "base", "junk", "hang"]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_step_of_a_random_plan_has_one_final_status(data: st.DataObject) -> None:
    count = data.draw(st.integers(0, 10))
    fates = [data.draw(st.sampled_from(FATES)) for _ in range(count)]
    plan = [
        step("w", sorted(data.draw(st.sets(st.integers(0, i - 1), max_size=3))) if i else (), i=i) for i in range(count)
    ]

    async def code(args: dict[str, Any], info: Any) -> Any:
        fate = fates[info.step]
        if fate == "hang":
            await asyncio.Event().wait()
        errors = {"fail": ValueError(), "busy": WorkerError("BUSY", retryable=True), "base": Odd()}
        if fate in errors:
            raise errors[fate]
        return object() if fate == "junk" else info.step

    async def main() -> tuple[RunResult, list[RunEvent], int]:
        events: list[RunEvent] = []
        result = await orchestrator(Made("w", code, timeout_s=0.01)).run(plan, deadline_s=2, on_event=events.append)
        return result, events, len(asyncio.all_tasks()) - 1

    begun = time.monotonic()
    result, events, left = asyncio.run(main())
    assert time.monotonic() - begun < 2.5
    assert left == 0
    ends = (EventKind.STEP_FINISHED, EventKind.STEP_FAILED, EventKind.STEP_SKIPPED)
    assert sorted(e.step for e in events if e.kind in ends) == list(range(count))
    for index, one in enumerate(result.steps):
        bad = any(result.steps[needed].status is not StepStatus.DONE for needed in plan[index].get("after", ()))
        expected = StepStatus.SKIPPED if bad else StepStatus.DONE if fates[index] == "ok" else StepStatus.FAILED
        assert (one.step, one.status) == (index, expected)


def test_few_of_many_ready_tasks_work_in_one_turn_of_the_loop_and_all_get_theirs_in_order():
    async def scene() -> tuple[list[int], list[int]]:
        turns, order, in_turn = Turns(at_once=3), list[int](), list[int]()
        count = 0

        async def one(number: int) -> None:
            nonlocal count
            await turns.take()
            order.append(number)
            count += 1

        tasks = [asyncio.create_task(one(number)) for number in range(20)]
        tasks[5].cancel()
        while len(order) < 19:
            before = count
            await asyncio.sleep(0)
            in_turn.append(count - before)
        return order, in_turn

    order, in_turn = asyncio.run(scene())
    assert order == [number for number in range(20) if number != 5]
    assert max(in_turn) <= 3
