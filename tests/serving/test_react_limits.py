"""What ends a ReAct agent: circles, turns, tokens, time, bad calls, a full context, a model that is gone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from plansmith.contract.catalog import Effect
from plansmith.serving.react.config import ReActConfig
from plansmith.serving.react.state import End
from plansmith.serving.runs.events import RunStatus
from plansmith.serving.workers.base import CallInfo, WorkerError
from plansmith.serving.workers.registry import Registry
from tests.serving.openai_server import Asked, Reply, failure, half_a_body, hangs
from tests.serving.react_parts import (
    CALM,
    ask,
    asks,
    call,
    closing,
    final,
    observations,
    oslo,
    registry,
    turns,
)
from tests.serving.run_parts import Made, echo
from tests.serving.run_parts import hangs as hanging


def test_the_same_call_a_third_time_running_is_not_made_and_the_model_must_answer():
    worker = Made("echo", echo, effect=Effect.READ)
    result, requests = ask(lambda asked: closing(asked) or asks(asked, call("echo", {"a": 1})), Registry("c", [worker]))
    assert (result.end, result.status) == (End.REPEATED_ACTION, RunStatus.PARTIAL)
    assert (len(worker.calls), result.turns) == (2, 3)
    assert result.answer.text == "From what is known: rain."
    assert any("repeated itself" in line for line in result.answer.missing)
    last = requests[-1].body
    assert "tools" not in last
    assert "Step 1 result" in last["messages"][-1]["content"]


def test_two_calls_in_turns_are_a_circle_too():
    worker = Made("echo", echo, effect=Effect.READ)

    def script(asked):
        return closing(asked) or asks(asked, call("echo", {"a": asked.number % 2}))

    result, _ = ask(script, Registry("c", [worker]))
    assert (result.end, len(worker.calls), result.turns) == (End.REPEATED_ACTION, 3, 4)


def test_a_model_that_never_ends_is_stopped_after_its_turns():
    worker = Made("echo", echo, effect=Effect.READ)

    def script(asked):
        return closing(asked) or asks(asked, call("echo", {"a": asked.number}))

    result, requests = ask(script, Registry("c", [worker]), CALM.model_copy(update={"max_steps": 5}))
    assert (result.end, result.turns, len(worker.calls), len(requests)) == (End.MAX_STEPS, 5, 5, 6)
    assert result.answer.by_model


def test_invented_tools_go_back_with_the_names_twice_and_then_it_ends():
    def script(asked):
        return closing(asked) or asks(asked, call(f"wether_get{asked.number}", {"city": "Oslo"}))

    result, requests = ask(script, registry())
    assert (result.end, result.bad_calls, result.turns) == (End.BAD_CALLS, 3, 3)
    told = json.loads(observations(requests[1])[0])
    assert told["code"] == "NOT_FOUND"
    assert "'weather_get'" in told["message"]


def test_broken_json_for_ever_ends_after_two_words():
    result, _ = ask(lambda asked: closing(asked) or asks(asked, call("weather_get", "{{{" * asked.number)), registry())
    assert (result.end, result.turns, result.calls) == (End.BAD_CALLS, 3, ())


def test_429_and_500_are_tried_again():
    faults = [failure(429, "slow", retry_after="0"), failure(500, "oops")]

    def script(asked):
        return faults[asked.number] if asked.number < 2 else asks(asked, final("Rain."))

    result, requests = ask(script, registry(), endpoint={"retries": 3})
    assert (result.end, result.answer.text, len(requests)) == (End.ANSWERED, "Rain.", 3)


@pytest.mark.parametrize(
    "broken", [lambda _: failure(500, "oops"), half_a_body, lambda _: Reply(b"no json"), lambda _: Reply(b"{}")]
)
def test_a_model_that_is_gone_ends_the_run_with_what_is_known(broken: Any):
    def script(asked):
        return asks(asked, oslo()) if asked.number == 0 else broken(asked)

    result, _ = ask(script, registry())
    assert (result.end, result.status) == (End.MODEL_FAILED, RunStatus.PARTIAL)
    assert not result.answer.by_model
    assert result.answer.for_person
    assert '"degrees":7.5' in result.answer.text


def test_a_model_that_is_gone_at_once_is_a_failed_run():
    result, _ = ask(lambda _: failure(500, "oops"), registry())
    assert (result.end, result.status, result.calls) == (End.MODEL_FAILED, RunStatus.FAILED, ())


def test_a_model_that_hangs_is_left_at_the_deadline():
    result, _ = ask(hangs, registry(), deadline_s=0.5)
    assert (result.end, result.status) == (End.DEADLINE, RunStatus.FAILED)
    assert result.seconds < 5


def test_a_worker_that_hangs_is_left_in_time_for_an_answer():
    stuck = Made("stuck", hanging, effect=Effect.READ)

    def script(asked):
        return closing(asked) or asks(asked, call("stuck"), oslo())

    result, _ = ask(script, registry(stuck), deadline_s=1.5)
    assert (result.end, result.status) == (End.DEADLINE, RunStatus.PARTIAL)
    assert result.answer.text == "From what is known: rain."
    assert result.calls[0].outcome.failure is not None
    assert result.calls[0].outcome.failure.code == "TIMEOUT"
    assert result.calls[1].outcome.result["degrees"] == 7.5


def counted(asked: Asked, reply: Reply) -> Reply:
    """The reply with token counts of a careful tokenizer: three bytes a token."""
    body = json.loads(reply.content)
    size = len(json.dumps([asked.body["messages"], asked.body.get("tools")]))
    completion_tokens = min(asked.body["max_tokens"], max(1, len(json.dumps(body["choices"])) // 3))
    body["usage"] = {"prompt_tokens": size // 3, "completion_tokens": completion_tokens, "total_tokens": 0}
    return Reply(json.dumps(body).encode())


@pytest.mark.parametrize("budget", [256, 600, 1500, 3000, 6000])
def test_the_token_budget_is_never_passed(budget: int):
    worker = Made("echo", echo, effect=Effect.READ)

    def script(asked):
        return counted(asked, closing(asked) or asks(asked, call("echo", {"a": "word " * 40, "n": asked.number})))

    config = ReActConfig(retries=FAST_ONE, max_steps=256, token_budget=budget, answer_tokens=64)
    result, _ = ask(script, Registry("c", [worker]), config)
    assert result.end is End.TOKEN_BUDGET
    assert result.prompt_tokens + result.completion_tokens <= budget
    assert result.answer.text


FAST_ONE = CALM.retries


def test_old_observations_become_facts_when_the_context_fills_and_numbers_and_errors_stay():
    long = "A long description that nobody needs. " * 20

    async def room(args: dict[str, Any], info: CallInfo) -> Any:
        if args["n"] == 1:
            raise WorkerError("SOLD_OUT", "room 17-B is sold out until 2027-03-04.")
        return {"id": f"hotel_{args['n']}", "price": 100.25 + args["n"], "text": long}

    worker = Made("room", room, effect=Effect.READ)
    rooms = [[call("room", {"n": n})] for n in range(6)]

    def script(asked):
        return counted(asked, turns(*rooms, [final("hotel_0")])(asked))

    config = CALM.model_copy(update={"window_tokens": 2000, "compact_share": 0.5, "max_steps": 10})
    result, requests = ask(script, Registry("c", [worker]), config)
    assert result.end is End.ANSWERED
    assert result.compactions >= 1
    query = requests[-1].body["messages"][1]["content"]
    assert '/id="hotel_0"' in query
    assert "/price=100.25" in query
    assert "room 17-B is sold out until 2027-03-04." in query
    assert long not in query
    assert "further values left out" in query
    assert max(len(json.dumps(one.body)) / 3 for one in requests) < 2000


def test_compaction_that_does_not_shrink_ends_the_run_with_an_answer():
    worker = Made("table", echo, effect=Effect.READ)
    wide = [call("table", {"n": n, "rows": list(range(1000, 1300))}) for n in range(9)]

    def script(asked):
        return closing(asked) or counted(asked, asks(asked, wide[asked.number]))

    config = CALM.model_copy(update={"window_tokens": 2000, "max_steps": 9})
    result, _ = ask(script, Registry("c", [worker]), config)
    assert result.end in (End.CONTEXT_FULL, End.TOKEN_BUDGET)
    assert result.answer.text
