"""Variants of a small catalog, case by case: what is renamed and what is not, what is added, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from plansmith.contract import Catalog, CatalogError, InputError, Worker, check_plan
from plansmith.contract.plan import dumps, references
from plansmith.contract.prompt import signature
from plansmith.contract.records import Candidate
from plansmith.contract.variants import (
    Descriptions,
    NameStyle,
    confusable,
    renamed,
    shuffled,
    with_distractors,
    without,
)
from plansmith.contract.variants.naming import changed, spoken, words_of
from tests.contract.variant_cases import (
    ASSISTANT,
    PLAN,
    POOL,
    faults,
    obj,
    worker_of,
)


def test_only_workers_and_parameters_are_renamed_in_a_plan() -> None:
    variant = renamed(ASSISTANT, 1)
    quote, add, send = variant.plan(PLAN)
    assert {quote["type"], add["type"], send["type"]}.isdisjoint(ASSISTANT.names)
    assert list(quote["args"].values()) == ["title"]
    assert list(add["args"].values()) == list(PLAN[1]["args"].values())
    assert add["after"] == [0]
    assert list(send["args"].values()) == list(PLAN[2]["args"].values())
    assert [r.tokens for step in variant.plan(PLAN) for r in references(step["args"])] == [("stock",), ("stock",)]


def test_every_place_of_a_schema_that_names_a_parameter_is_renamed() -> None:
    variant = renamed(ASSISTANT, 1)
    new = variant.names.parameters["cal_add_event"]
    title, time, place = new["title"], new["time"], new["place"]
    worker = worker_of(variant, "cal_add_event")
    assert list(worker.properties) == [title, time, place]
    assert list(worker.properties[place]["properties"]) == ["title", "time"]
    assert {key: value for key, value in worker.args.items() if key != "properties"} == {
        "type": "object",
        "additionalProperties": False,
        "required": [title, time],
        "dependentRequired": {place: [time]},
        "dependentSchemas": {place: {"required": [title], "properties": {time: {"minLength": 1}}}},
        "allOf": [{"if": {"required": [place]}, "then": {"properties": {title: {"maxLength": 9}}}}],
    }


def test_objects_of_whole_arguments_in_a_schema_are_renamed() -> None:
    """An enum or const over all arguments names them as keys; objects inside a parameter keep theirs."""
    args = obj({"a": True, "b": {"enum": [{"a": 1}]}}, enum=[{"a": 1}, {"b": {"a": 1}}], examples=[{"a": 1}])
    other = obj({"a": True}, const={"a": {"a": 2}}, default={"a": 0})
    catalog = Catalog("c", [Worker(name="v", args=args), Worker(name="w", args=other)])
    variant = renamed(catalog, 0)
    names, more = variant.names.parameters["v"], variant.names.parameters["w"]
    first, second = variant.catalog.workers
    assert first.args["enum"] == [{names["a"]: 1}, {names["b"]: {"a": 1}}]
    assert first.args["examples"] == [{names["a"]: 1}]
    assert first.properties[names["b"]] == {"enum": [{"a": 1}]}
    assert (second.args["const"], second.args["default"]) == ({more["a"]: {"a": 2}}, {more["a"]: 0})
    plan = [{"type": "v", "args": {"b": {"a": 1}}}, {"type": "w", "args": {"a": {"a": 2}}}]
    assert check_plan(plan, catalog).valid
    assert check_plan(variant.plan(plan), variant.catalog).valid


@pytest.mark.parametrize("style", NameStyle)
def test_no_new_name_is_an_old_one(style: NameStyle) -> None:
    parameters = [f"arg_{digit}" for digit in range(10)] + ["given_a", "a", "A", "a!"]
    workers = [Worker(name=f"func_{letter}{digit}", args=obj({})) for letter in "abcdefghij" for digit in range(10)]
    undeclared = [f"arg_{number}" for number in range(10, 100)]
    worker = Worker(name="w", args=obj(dict.fromkeys(parameters, True), required=undeclared))
    catalog = Catalog("c", [*workers, worker])
    variant = renamed(catalog, 0, style=style)
    assert set(variant.catalog.names).isdisjoint(catalog.names)
    new = list(worker_of(variant, "w").properties)
    assert len(set(new)) == len(parameters)
    assert set(new).isdisjoint([*parameters, *undeclared])


def test_a_masked_name_has_no_hint_and_the_first_sentence_says_what_it_was() -> None:
    variant = renamed(ASSISTANT, 1)
    text = signature(variant.catalog.workers[1])
    new = variant.names.parameters["cal_add_event"]
    hints = f"{new['title']}: Title of the event; {new['time']}: time; {new['place']}: place"
    assert text.endswith(f"# Add an event ({hints}).")
    assert variant.catalog.workers[0].description.endswith("stock). The stock is a ticker.")
    assert variant.catalog.workers[2].description.startswith("msg send (")
    dropped = renamed(ASSISTANT, 1, descriptions=Descriptions.DROP)
    seen = dumps([worker.args for worker in dropped.catalog.workers])
    assert not [word for word in ("stock", "Stock", "Title of", "to", "text") if f'"{word}' in seen]
    assert {worker.description for worker in dropped.catalog.workers} == {""}
    kept = renamed(ASSISTANT, 1, descriptions=Descriptions.KEEP)
    assert [w.description for w in kept.catalog.workers] == [w.description for w in ASSISTANT.workers]


def test_reworded_names_keep_the_content_in_another_form() -> None:
    variant = renamed(ASSISTANT, 3, style=NameStyle.REWORDED)
    new = variant.names.worker("cal_add_event")
    assert new != "cal_add_event"
    assert {"cal", "event"} < {word.lower() for word in words_of(new)}
    assert "stock" in variant.names.parameters["fin_get_quote"]["stock"]
    assert [w.description for w in variant.catalog.workers] == [w.description for w in ASSISTANT.workers]


def test_rates_say_how_many_names_change() -> None:
    def count(**rates: float) -> tuple[int, int]:
        variant = renamed(ASSISTANT, 5, **rates)
        kept = {worker.name for worker in variant.catalog.workers} & set(ASSISTANT.names)
        renamed_parameters = sum(
            name in ("title", "time", "place") for name in variant.names.parameters.get("cal_add_event", {})
        )
        return 3 - len(kept), renamed_parameters

    assert count(worker_rate=0, parameter_rate=0) == (0, 0)
    assert count(worker_rate=0.34, parameter_rate=0.34) == (1, 1)
    assert count(worker_rate=1, parameter_rate=0) == (3, 0)
    assert count() == (3, 3)


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"patternProperties": {"^arg_": {"type": "integer"}}}, "patternProperties"),
        ({"propertyNames": {"maxLength": 3}}, "propertyNames"),
        ({"allOf": [{"patternProperties": {"^x": True}}]}, "patternProperties"),
        ({"allOf": [{"$ref": "#/$defs/both"}], "$defs": {"both": {"required": ["b"]}}}, "a whole"),
        ({"properties": {"a": {"$ref": "#"}, "b": True}}, "'#'"),
        ({"properties": {"a": {"type": "array", "items": {"$ref": "#/properties/b"}}, "b": True}}, "#/properties/b"),
    ],
)
def test_parameters_that_cannot_be_renamed_rightly_keep_their_names_and_are_named(more: dict[str, Any], word: str):
    args = {"type": "object", "properties": {"a": True, "b": True}} | more
    variant = renamed(Catalog("c", [Worker(name="w", args=args)]), 0)
    assert list(variant.catalog.workers[0].properties) == ["a", "b"]
    assert variant.catalog.workers[0].name != "w"
    assert word in variant.unchanged_parameters["w"]


def test_references_into_definitions_are_no_obstacle() -> None:
    node = obj({"next": {"$ref": "#/$defs/node"}, "a": {"type": "integer"}}, additionalProperties=False)
    catalog = Catalog("c", [Worker(name="w", args=obj({"a": {"$ref": "#/$defs/node"}}, **{"$defs": {"node": node}}))])
    variant = renamed(catalog, 0)
    for args in ({"a": {"next": {"a": 1}}}, {"a": {"next": {"arg": 1}}}, {"a": {"a": "x"}}):
        plan = [{"type": "w", "args": args}]
        assert faults(variant.plan(plan), variant.catalog) == faults(plan, catalog, variant.names)
    assert variant.unchanged_parameters == {}


def test_a_name_that_a_plan_invented_does_not_fall_together_with_a_new_one() -> None:
    variant = renamed(ASSISTANT, 1)
    new = variant.names.parameters["fin_get_quote"]["stock"]
    plan = [
        {"type": "fin_get_quote", "args": {"stock": 1, new: 2}},
        {"type": variant.names.worker("msg_send"), "args": {}},
    ]
    made = variant.plan(plan)
    assert made[0]["args"] == {new: 1, "stock": 2}
    assert faults(made, variant.catalog) == faults(plan, ASSISTANT, variant.names)
    assert variant.restore(made) == plan


def test_shuffling_changes_the_order_of_workers_and_parameters_and_required_ones_stay_first() -> None:
    variants_ = [shuffled(ASSISTANT, seed) for seed in range(20)]
    assert len({variant.catalog.names for variant in variants_}) > 3
    assert all(variant.catalog.names != ASSISTANT.names for variant in variants_)
    by_order = {tuple(worker_of(v, "cal_add_event").properties): v for v in variants_}
    assert by_order.keys() == {("title", "time", "place"), ("time", "title", "place")}
    swapped = by_order["time", "title", "place"]
    assert list(swapped.plan(PLAN)[1]["args"]) == ["time", "title", "place"]
    assert worker_of(swapped, "cal_add_event").args["required"] == ["time", "title"]
    kept = shuffled(ASSISTANT, 1, parameters=False)
    assert {w.name: w.args for w in kept.catalog.workers} == {w.name: w.args for w in ASSISTANT.workers}


def test_distractors_that_may_do_the_same_work_are_left_out() -> None:
    variant = with_distractors(ASSISTANT, POOL, 3, 0)
    added = set(variant.catalog.names) - set(ASSISTANT.names)
    assert added == {"garden_plant", "garden_water", "garden_dig"}
    assert [name for name in variant.catalog.names if name in ASSISTANT.names] == list(ASSISTANT.names)
    assert len({with_distractors(ASSISTANT, POOL, 3, seed).catalog.names for seed in range(9)}) > 3
    with pytest.raises(InputError, match="only 3 of the 4 workers of catalog 'pool'"):
        with_distractors(ASSISTANT, POOL, 4, 0)
    same = Catalog("same", [changed(ASSISTANT.workers[1], name="other_name")])
    with pytest.raises(InputError, match="only 0 of the 1"):
        with_distractors(ASSISTANT, same, 1, 0)


def test_a_near_copy_has_a_similar_name_and_may_not_stand_for_its_original() -> None:
    variant = confusable(ASSISTANT, 2, used=["fin_get_quote", "msg_send"], count=6)
    copies = [worker for worker in variant.catalog.workers if worker.name not in ASSISTANT.names]
    audited = [worker for worker in copies if "audit_number" in worker.required]
    assert len(audited) == 2
    for copy in copies:
        [origin] = [w for w in (ASSISTANT.workers[0], ASSISTANT.workers[2]) if w.returns == copy.returns]
        assert set(words_of(copy.name)) & set(words_of(origin.name))
        assert copy.description.startswith(origin.description.split(".")[0] or spoken(origin.name))
        swapped = [step | {"type": copy.name} if step["type"] == origin.name else step for step in PLAN]
        assert check_plan(swapped, variant.catalog).valid == (copy not in audited)
    assert len({worker.name for worker in copies}) == 6


def test_near_copies_that_cannot_be_made_are_refused() -> None:
    with pytest.raises(InputError, match="4 near copies are asked for, but 1 used workers allow 3"):
        confusable(ASSISTANT, 0, used=["msg_send"], count=4)
    with pytest.raises(CatalogError, match="'nobody'"):
        confusable(ASSISTANT, 0, used=["nobody"], count=1)


def test_taking_a_worker_out_leaves_nothing_to_do_for_plans_that_call_it() -> None:
    variant = without(ASSISTANT, ["msg_send"])
    assert variant.catalog.names == ("fin_get_quote", "cal_add_event")
    assert variant.plan(PLAN) == []
    assert variant.plan(PLAN[:2]) == PLAN[:2]
    assert variant.restore([]) == []
    with pytest.raises(CatalogError, match="'nobody'"):
        without(ASSISTANT, ["nobody"])
    with pytest.raises(InputError, match="would be left"):
        without(ASSISTANT, ASSISTANT.names)


def test_a_row_follows_with_its_possible_answer_and_its_results() -> None:
    row = Candidate(
        id="1",
        query="q",
        plan=PLAN[:1],
        family="f",
        source="s",
        results=[{"price": 1.5, "stock": "title"}],
        allowed=[{"fin_get_quote": {"stock": ["title", ""]}}],
    )
    new = renamed(ASSISTANT, 1)
    made = new.row(row)
    worker, stock = new.names.worker("fin_get_quote"), new.names.parameters["fin_get_quote"]["stock"]
    assert made.plan == [{"type": worker, "args": {stock: "title"}}]
    assert made.allowed == [{worker: {stock: ["title", ""]}}]
    assert made.results == row.results
    assert (made.id, made.query, made.family) == ("1", "q", "f")
    gone = without(ASSISTANT, ["fin_get_quote"]).row(row)
    assert (gone.plan, gone.allowed, gone.results) == ([], [], [])
    assert without(ASSISTANT, ["msg_send"]).row(row) == row


def test_texts_that_are_no_plan_pass_through() -> None:
    variant = renamed(ASSISTANT, 1)
    deep: Any = []
    for _ in range(500):
        deep = [deep]
    for value in (None, 3, "text", {}, [[]], [{"type": 3}], [{"type": "x", "args": deep}], [{"type": "fin_get_quote"}]):
        assert variant.restore(variant.plan(value)) == value
