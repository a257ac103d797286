"""The sequence penalty: its order, its bounds, and 1 for an equivalent plan; the scorer is that of evaluation."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plansmith.contract.catalog import Catalog, Worker
from plansmith.contract.check import check_plan
from plansmith.policy import agreement
from plansmith.training.reward import PENALTY, Agreement, Outcome, Reward, reward_of, tally

TEXT = {"type": "string"}
CATALOG = Catalog(
    "trip",
    [
        Worker(
            name="weather_get",
            description="Weather in a city.",
            args={
                "type": "object",
                "properties": {"city": TEXT, "days": {"type": "integer"}},
                "required": ["city"],
                "additionalProperties": False,
            },
        ),
        Worker(name="say", description="Say it.", args={"type": "object", "properties": {"text": TEXT}}),
        Worker(name="stop", description="Stop.", args={"type": "object", "properties": {}}),
    ],
)
CITIES = st.sampled_from(["Oslo", "Quito", "東京"])
STEPS = st.one_of(
    st.builds(lambda city, days: {"type": "weather_get", "args": {"city": city, "days": days}}, CITIES, st.integers()),
    st.builds(lambda city: {"type": "weather_get", "args": {"city": city}}, CITIES),
    st.builds(lambda text: {"type": "say", "args": {"text": text}}, CITIES),
    st.just({"type": "stop", "args": {}}),
)
PLANS = st.lists(STEPS, max_size=5)


def reward(plan: Any, reference: list[dict[str, Any]]) -> Reward:
    text = plan if isinstance(plan, str) else json.dumps(plan)
    return reward_of(text, reference, CATALOG, agreement)


def test_the_penalties_are_those_of_the_mission_and_in_order():
    assert PENALTY == {Outcome.UNPARSEABLE: -1.0, Outcome.UNREGISTERED: -0.5, Outcome.FAULTY: -0.25}
    reference = [{"type": "say", "args": {"text": "x"}}]
    worse = [
        reward('[{"type":"say"', reference),
        reward([{"type": "shout", "args": {}}], reference),
        reward([{"type": "weather_get", "args": {}}], reference),
        reward([], reference),
        reward([{"type": "say", "args": {"text": "y"}}], reference),
        reward(reference, reference),
    ]
    assert [found.value for found in worse] == [-1.0, -0.5, -0.25, 0.0, 0.5, 1.0]
    assert [found.outcome for found in worse] == [*PENALTY, *[Outcome.VALID] * 3]
    assert [found.empty for found in worse] == [False, False, False, True, False, False]


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("", Outcome.UNPARSEABLE),
        ("[]<eos>", Outcome.UNPARSEABLE),
        ("[] []", Outcome.UNPARSEABLE),
        ('{"type":"stop","args":{}}', Outcome.UNPARSEABLE),
        ("```json\n[]\n```", Outcome.UNPARSEABLE),
        ('[{"type":"stop","args":{}},]', Outcome.UNPARSEABLE),
        ("[1]", Outcome.UNREGISTERED),
        ('[{"args":{}}]', Outcome.UNREGISTERED),
        ('[{"type":null,"args":{}}]', Outcome.UNREGISTERED),
        ('[{"type":"Stop","args":{"a":1}}]', Outcome.UNREGISTERED),
        ('[{"type":"stop"}]', Outcome.FAULTY),
        ('[{"type":"stop","args":{},"why":1}]', Outcome.FAULTY),
        ('[{"type":"say","args":{"text":{"$from":"/0/x"}}}]', Outcome.FAULTY),
        ("[]", Outcome.VALID),
    ],
)
def test_an_answer_has_the_first_fault_that_fits(text: str, outcome: Outcome):
    assert reward(text, []).outcome is outcome


@given(PLANS, PLANS)
def test_a_valid_plan_is_rewarded_from_0_to_1(plan: list[dict[str, Any]], reference: list[dict[str, Any]]):
    found = reward(plan, reference)
    assert found.outcome is Outcome.VALID
    assert 0 <= found.value <= 1
    assert found.agreement is not None
    assert found.value == 1 or not found.agreement.equivalent


@given(PLANS, st.randoms(use_true_random=False))
def test_an_equivalent_plan_is_worth_1_in_any_order_of_steps(plan: list[dict[str, Any]], random: Any):
    other = copy.deepcopy(plan)
    random.shuffle(other)
    assert reward(other, plan) == Reward(1.0, Outcome.VALID, Agreement(1.0, 1.0, True), empty=not plan)


@given(st.text(max_size=60) | st.lists(st.dictionaries(st.sampled_from(["type", "args", "x"]), CITIES)), PLANS)
def test_whatever_is_not_valid_is_worth_less_than_anything_valid(answer: Any, reference: list[dict[str, Any]]):
    text = answer if isinstance(answer, str) else json.dumps(answer)
    found = reward(text, reference)
    assert (found.value < 0) == (not check_plan(text, CATALOG).valid)
    assert found.value in PENALTY.values() or 0 <= found.value <= 1


@given(PLANS.filter(bool), st.data())
def test_each_fault_put_into_a_right_plan_costs_what_it_should(plan: list[dict[str, Any]], data: st.DataObject):
    index = data.draw(st.integers(0, len(plan) - 1))
    faulty, unregistered = copy.deepcopy(plan), copy.deepcopy(plan)
    faulty[index]["why"] = 1
    unregistered[index]["type"] = "shout"
    text = json.dumps(plan)
    assert reward(faulty, plan).value == -0.25
    assert reward(unregistered, plan).value == -0.5
    assert reward(text[: data.draw(st.integers(0, len(text) - 1))], plan).value == -1.0


def test_a_scorer_that_leaves_its_range_is_refused():
    with pytest.raises(ValueError, match="from 0 to 1"):
        reward_of("[]", [], CATALOG, lambda text, reference, catalog: Agreement(1.5, 0.0, False))


@given(st.lists(st.tuples(PLANS | st.just("no json") | st.just([{"type": "shout", "args": {}}]), PLANS), min_size=1))
def test_the_parts_of_a_tally_add_up(pairs: list[tuple[Any, list[dict[str, Any]]]]):
    rewards = [reward(plan, reference) for plan, reference in pairs]
    found = tally(rewards)
    assert found.answers == len(pairs)
    assert found.unparseable + found.unregistered + found.faulty + found.valid == pytest.approx(1)
    assert found.empty <= found.valid
    assert found.equivalent <= found.valid
    assert found.reward == pytest.approx(sum(one.value for one in rewards) / len(rewards))
    assert found.unparseable == sum(plan == "no json" for plan, _ in pairs) / len(pairs)
