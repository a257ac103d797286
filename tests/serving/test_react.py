"""The ReAct agent against model servers that misbehave in one way each, over real HTTP."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from plansmith.contract.catalog import Effect
from plansmith.serving.react.state import End
from plansmith.serving.runs.events import EventKind, RunEvent, RunStatus
from plansmith.serving.workers.base import CallInfo
from plansmith.serving.workers.registry import Registry
from tests.serving.openai_server import Asked, Reply
from tests.serving.react_parts import (
    CALM,
    ask,
    asks,
    call,
    final,
    observations,
    oslo,
    registry,
    tool_names,
    turns,
)
from tests.serving.run_parts import Made, echo, raises


def test_a_call_then_an_answer():
    result, requests = ask(turns([oslo()], [final("Rain.", confidence=0.9)]), registry())
    assert (result.status, result.end) == (RunStatus.COMPLETE, End.ANSWERED)
    assert (result.answer.text, result.answer.confidence, result.answer.by_model) == ("Rain.", 0.9, True)
    assert [(one.worker, one.args, one.outcome.result["degrees"]) for one in result.calls] == [
        ("weather_get", {"city": "Oslo"}, 7.5)
    ]
    assert (result.turns, result.asked, len(requests)) == (2, 2, 2)
    assert result.prompt_tokens == 200
    assert result.completion_tokens > 0
    first, second = requests
    assert [message["role"] for message in first.body["messages"]] == ["system", "user"]
    assert tool_names(first) == ["weather_get", "final_answer"]
    assert first.body["tools"][0]["function"]["parameters"]["required"] == ["city"]
    assert [message["role"] for message in second.body["messages"]] == ["system", "user", "assistant", "tool"]
    assert json.loads(observations(second)[0])["degrees"] == 7.5


def test_thoughts_stay_in_the_history():
    def script(asked):
        return asks(asked, oslo(), text="I need the weather.") if asked.number == 0 else asks(asked, final())

    _, requests = ask(script, registry())
    assert requests[1].body["messages"][2]["content"] == "I need the weather."


def test_a_model_that_answers_at_once():
    result, requests = ask(turns([final("42")]), registry())
    assert (result.answer.text, result.calls, len(requests)) == ("42", (), 1)


def test_a_model_that_writes_text_is_told_how_to_end_and_then_taken_at_its_word():
    result, requests = ask(turns("It rains.", "It rains, I said."), registry())
    assert (result.end, result.answer.text, result.status) == (End.PLAIN_TEXT, "It rains, I said.", RunStatus.COMPLETE)
    assert "final_answer" in requests[1].body["messages"][-1]["content"]


def test_five_calls_at_once_run_at_once_and_are_answered_in_their_order():
    running = asyncio.Semaphore(0)
    under_way = 0

    async def waits_for_all(args: dict[str, Any], info: CallInfo) -> Any:
        nonlocal under_way
        under_way += 1
        if under_way == 5:
            for _ in range(5):
                running.release()
        await running.acquire()
        return args["n"]

    worker = Made("count", waits_for_all, effect=Effect.READ)
    result, requests = ask(turns([call("count", {"n": n}) for n in range(5)], [final()]), Registry("c", [worker]))
    assert result.end is End.ANSWERED
    assert observations(requests[1]) == ["0", "1", "2", "3", "4"]
    assert [one.outcome.step for one in result.calls] == [0, 1, 2, 3, 4]


def test_equal_calls_of_one_turn_are_made_once_and_each_answered():
    worker = Made("echo", echo, effect=Effect.READ)
    twice = [call("echo", {"a": 1, "b": 2}, "x"), call("echo", {"b": 2, "a": 1}, "y")]
    result, requests = ask(turns(twice, [final()]), Registry("c", [worker]))
    assert (len(worker.calls), len(result.calls), len(observations(requests[1]))) == (1, 1, 2)


def test_calls_without_ids_or_with_equal_ones_get_ids_of_their_own():
    worker = Made("echo", echo, effect=Effect.READ)
    script = turns(
        [call("echo", {"a": 1}, None), call("echo", {"a": 2}, "same"), call("echo", {"a": 3}, "same")],
        [call("echo", {"a": 4}, "same")],
        [final()],
    )
    result, _ = ask(script, Registry("c", [worker]))
    assert (result.end, len(result.calls)) == (End.ANSWERED, 4)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ('{"city": "Os', "no JSON"),
        ("[1]", "must be one JSON object"),
        ('{"town": "Oslo"}', "town"),
        ('{"city": 7}', "city"),
        ("{}", "city"),
        ('{"city": {"$from": "/0"}}', "only earlier steps"),
        ('{"city": NaN}', "no JSON"),
    ],
)
def test_arguments_that_do_not_parse_or_fit_go_back_with_the_reason(arguments: str, says: str):
    result, requests = ask(turns([call("weather_get", arguments)], [oslo()], [final()]), registry())
    told = json.loads(observations(requests[1])[0])
    assert told["code"] == "INVALID_ARGUMENT"
    assert says in told["message"]
    assert (result.end, result.bad_calls, len(result.calls)) == (End.ANSWERED, 1, 1)


@pytest.mark.parametrize("wrong", [{"answer": ""}, {}, {"answer": "x", "confidence": 7}, {"answer": 3}])
def test_a_final_answer_that_is_none_goes_back(wrong: dict[str, Any]):
    result, _ = ask(turns([call("final_answer", wrong)], [final("Rain.")]), registry())
    assert (result.end, result.answer.text, result.bad_calls) == (End.ANSWERED, "Rain.", 1)


def test_a_final_answer_beside_calls_waits_for_their_results():
    result, requests = ask(turns([oslo(), final("Guess.")], [final("Rain.")]), registry())
    assert (result.answer.text, len(result.calls)) == ("Rain.", 1)
    assert any("beside other calls" in text for text in observations(requests[1]))


def test_a_failure_of_a_worker_is_an_observation_and_never_a_result():
    result, requests = ask(turns([oslo("Atlantis")], [final("There is none.")]), registry())
    told = json.loads(observations(requests[1])[0])
    assert (told["error"], told["code"]) == (True, "NOT_FOUND")
    assert result.calls[0].outcome.failure is not None
    assert result.calls[0].outcome.result is None


def test_a_worker_that_keeps_failing_is_taken_off_the_tools_with_a_word():
    broken = Made("broken", raises(*[RuntimeError("x")] * 9), effect=Effect.READ)
    script = turns(*[[call("broken", {"n": n})] for n in range(3)], [call("broken", {"n": 9})], [final()])
    result, requests = ask(script, registry(broken))
    assert (result.end, list(result.removed), len(broken.calls)) == (End.ANSWERED, ["broken"], 3)
    assert "broken" in tool_names(requests[2])
    assert "broken" not in tool_names(requests[3])
    assert "Not available any more" in requests[3].body["messages"][0]["content"]
    assert json.loads(observations(requests[4])[-1])["code"] == "UNAVAILABLE"


def test_long_results_are_cut_and_counted():
    worker = Made("echo", echo, effect=Effect.READ)
    config = CALM.model_copy(update={"observation_chars": 100})
    result, requests = ask(turns([call("echo", {"a": "x" * 500})], [final()]), Registry("c", [worker]), config)
    assert result.cut == 1
    assert "characters in all" in observations(requests[1])[0]
    assert len(observations(requests[1])[0]) < 200


def test_writes_and_what_needs_a_permission_are_no_tools_unless_allowed():
    order = Made("order", echo, effect=Effect.WRITE)
    locked = Made("locked", echo, effect=Effect.READ, permission="inside")
    result, requests = ask(turns([call("order")], [final()]), registry(order, locked))
    assert tool_names(requests[0]) == ["weather_get", "final_answer"]
    assert result.withheld == {"order": "its effect is 'write'", "locked": "it needs the permission 'inside'"}
    assert order.calls == []
    allowed = CALM.model_copy(update={"effects": frozenset(Effect), "permissions": frozenset({"inside"})})
    _, requests = ask(turns([call("order")], [final()]), registry(order, locked), allowed)
    assert tool_names(requests[0]) == ["weather_get", "order", "locked", "final_answer"]
    assert order.calls[0][1].idempotency_key


@pytest.mark.parametrize(("said", "calls"), [(True, 1), (False, 0), (None, 0)])
def test_a_worker_that_asks_first_runs_only_where_a_person_agrees(said: bool | None, calls: int):
    order = Made("order", echo, effect=Effect.WRITE, approval=True)

    async def approve(request: Any) -> bool:
        assert request.worker == "order"
        return said is True

    config = CALM.model_copy(update={"effects": frozenset(Effect)})
    options = {} if said is None else {"approve": approve}
    result, _ = ask(turns([call("order")], [final()]), registry(order), config, **options)
    assert len(order.calls) == calls
    assert (result.calls[0].outcome.failure is None) == bool(calls)


def test_names_that_the_protocol_does_not_take_get_others_that_lead_back():
    workers = [Made(name, echo, effect=Effect.READ) for name in ("wetter.in Köln", "wetter.in Kôln", "a" * 80)]
    _, requests = ask(turns([final()]), Registry("c", workers))
    names = tool_names(requests[0])
    assert len(set(names)) == 4
    assert all(
        name.replace("_", "").replace("-", "").isalnum() and name.isascii() and len(name) <= 64 for name in names
    )
    result, _ = ask(turns([call(names[1], {"a": 1})], [final()]), Registry("c", workers))
    assert result.calls[0].worker == "wetter.in Kôln"


def test_events_tell_the_story_without_values():
    seen: list[RunEvent] = []
    result, _ = ask(turns([oslo()], [final("Rain.")]), registry(), on_event=seen.append)
    assert [event.kind for event in seen] == [
        EventKind.RUN_STARTED,
        EventKind.MODEL_ASKED,
        EventKind.STEP_STARTED,
        EventKind.STEP_FINISHED,
        EventKind.MODEL_ASKED,
        EventKind.ANSWER,
        EventKind.RUN_FINISHED,
    ]
    assert {event.run_id for event in seen} == {result.run_id}
    assert "Oslo" not in "".join(event.model_dump_json() for event in seen)


def test_an_answer_below_the_least_confidence_goes_to_a_person():
    config = CALM.model_copy(update={"min_confidence": 0.8})
    for given, person in (({"confidence": 0.9}, False), ({"confidence": 0.7}, True), ({}, True)):
        result, _ = ask(turns([final("Rain.", **given)]), registry(), config)
        assert result.answer.for_person is person


def test_many_runs_at_once_keep_apart():
    worker = Made("echo", echo, effect=Effect.READ)

    def script(asked: Asked) -> Reply:
        query = asked.body["messages"][1]["content"]
        return asks(asked, final(query)) if observations(asked) else asks(asked, call("echo", {"q": query}))

    async def many(agent: Any) -> Any:
        results = await asyncio.gather(*(agent.run(f"query {n}") for n in range(32)))
        assert [one.answer.text for one in results] == [f"query {n}" for n in range(32)]
        assert [one.calls[0].args["q"] for one in results] == [f"query {n}" for n in range(32)]
        return results[0]

    ask(script, Registry("c", [worker]), work=many)
    assert len(worker.calls) == 32
