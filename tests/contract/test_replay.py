"""Replay: calls answered from a record of earlier calls."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from plansmith.contract.errors import ResolutionError
from plansmith.contract.plan import Plan, Step
from plansmith.contract.replay import Match, RecordedCall, Replay, UnrecordedCallError, recorded_calls

FLIGHT = RecordedCall("flight", {"from": "OSL", "to": "LIS", "seats": 2}, "f1")
OTHER = RecordedCall("flight", {"from": "OSL", "to": "FCO"}, "f2")
HOTEL = RecordedCall("hotel", {"to": "LIS"}, "h1")
RECORD = [FLIGHT, OTHER, HOTEL]


def plan(*steps: dict[str, Any]) -> Plan:
    return Plan.from_json(list(steps))


def test_a_recorded_plan_gives_its_calls_with_the_references_resolved():
    made = plan(
        {"type": "flight", "args": {"to": "LIS"}},
        {"type": "note", "args": {"text": {"$format": "{0}!", "with": [{"$from": "/0/id"}]}, "all": [{"$from": "/0"}]}},
    )
    calls = recorded_calls(made, [{"id": 7}, None])
    assert calls[0] == RecordedCall("flight", {"to": "LIS"}, {"id": 7})
    assert calls[1] == RecordedCall("note", {"text": "7!", "all": [{"id": 7}]}, None)
    assert recorded_calls(Plan(()), []) == ()


@pytest.mark.parametrize("results", [[], [{"id": 7}], [{"id": 7}, 1, 2]])
def test_there_must_be_one_result_for_each_step(results: list[Any]):
    made = plan({"type": "flight", "args": {}}, {"type": "note", "args": {}})
    with pytest.raises(ValueError, match=f"found {len(results)} recorded results for 2 steps"):
        recorded_calls(made, results)


@pytest.mark.parametrize("pointer", ["/0/name", "/1", "/2"])
def test_a_reference_that_leads_nowhere_before_its_step_is_an_error(pointer: str):
    made = plan({"type": "flight", "args": {}}, {"type": "note", "args": {"text": {"$from": pointer}}})
    with pytest.raises(ResolutionError):
        recorded_calls(made, [{"id": 7}, {"id": 8}])


def test_a_call_with_equal_arguments_is_found_by_value():
    replay = Replay(RECORD)
    answer = replay.find("flight", {"seats": 2.0, "to": "LIS", "from": "OSL"})
    assert answer is not None
    assert (answer.result, answer.match, answer.call) == ("f1", Match.EXACT, FLIGHT)
    assert (replay.counts, replay.missing) == ({Match.EXACT: 1}, 0)


@pytest.mark.parametrize(
    ("worker", "args"),
    [
        ("flight", {"from": "OSL", "to": "LIS"}),
        ("flight", {"from": "OSL", "to": "LIS", "seats": "2"}),
        ("flight", {"from": "OSL", "to": "LIS", "seats": 2, "class": None}),
        ("Flight", FLIGHT.args),
        ("hotel", FLIGHT.args),
        ("train", {}),
    ],
)
def test_any_other_call_has_no_answer_and_is_counted(worker: str, args: dict[str, Any]):
    replay = Replay(RECORD)
    assert replay.find(worker, args) is None
    assert (replay.counts.total(), replay.missing) == (0, 1)


def test_equal_calls_are_answered_one_after_the_other_and_then_by_the_last():
    replay = Replay([RecordedCall("now", {}, 1), HOTEL, RecordedCall("now", {}, 2)])
    assert [replay.call("now", {}) for _ in range(4)] == [1, 2, 2, 2]
    assert replay.call("hotel", {"to": "LIS"}) == "h1"
    assert replay.counts == {Match.EXACT: 5}
    assert Replay([RecordedCall("now", {}, None)]).find("now", {}) is not None


def test_the_nearest_call_shares_most_arguments():
    replay = Replay(RECORD, nearest=True)
    answer = replay.find("flight", {"from": "OSL", "to": "LIS", "seats": 9})
    assert answer is not None
    assert (answer.result, answer.match, answer.call) == ("f1", Match.NEAREST, FLIGHT)
    exact = replay.find("flight", OTHER.args)
    assert exact is not None
    assert exact.match is Match.EXACT
    assert (replay.counts, replay.missing) == ({Match.EXACT: 1, Match.NEAREST: 1}, 0)


def test_of_several_nearest_the_one_with_fewest_other_arguments_counts_then_the_first():
    replay = Replay(RECORD, nearest=True)
    assert replay.call("flight", {"from": "OSL"}) == "f2"
    twins = [RecordedCall("f", {"a": 1, "b": 2}, "first"), RecordedCall("f", {"a": 1, "b": 3}, "second")]
    assert Replay(twins, nearest=True).call("f", {"a": 1}) == "first"


def test_a_call_that_shares_nothing_or_of_another_worker_has_no_nearest():
    replay = Replay(RECORD, nearest=True)
    assert replay.find("flight", {"from": "LIS"}) is None
    assert replay.find("flight", {}) is None
    assert replay.find("train", {"from": "OSL"}) is None
    assert replay.find("hotel", {"from": "OSL"}) is None
    assert replay.missing == 4


def test_the_error_names_the_call_and_what_there_is():
    with pytest.raises(UnrecordedCallError) as caught:
        Replay(RECORD).call("flight", {"to": "x" * 400})
    message = str(caught.value)
    assert "'flight'" in message
    assert "2 calls of that worker" in message
    assert len(message) < 500


def test_it_executes_steps_as_an_executor():
    replay = Replay(RECORD)
    assert asyncio.run(replay.execute(Step("hotel", {"to": {"$from": "/0"}}), {"to": "LIS"})) == "h1"
    with pytest.raises(UnrecordedCallError):
        asyncio.run(replay.execute(Step("hotel", {}), {}))
