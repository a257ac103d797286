"""Variants of random catalogs: random plans stay right under each, keep their faults, and come back exactly."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plansmith.contract import Catalog, CatalogMismatchError, Plan, check_plan
from plansmith.contract.findings import Severity
from plansmith.contract.plan import canonical_json, dumps
from plansmith.contract.prompt import signature
from plansmith.contract.replay import Replay, recorded_calls
from plansmith.contract.variants import (
    NameStyle,
    Twist,
    confusable,
    renamed,
    shuffled,
    with_distractors,
    without,
)
from plansmith.contract.variants.base import permutation
from plansmith.eval.matching import bijection
from tests.contract.strategies import SCALARS, catalogs, json_values, mutated, plans
from tests.contract.variant_cases import (
    POOL,
    SAID,
    arguments,
    catalogs_with_rules,
    described,
    faults,
    is_shaped,
    variants,
)


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_a_valid_plan_stays_valid_and_comes_back(data: st.DataObject) -> None:
    catalog = data.draw(described(catalogs()))
    plan = data.draw(plans(catalog))
    variant = data.draw(variants(catalog))
    result = check_plan(variant.plan(plan), variant.catalog)
    assert [finding for finding in result.findings if finding.severity is Severity.ERROR] == []
    assert dumps(variant.plan(plan)) == dumps(canonical_json(variant.plan(plan), variant.catalog))
    assert dumps(variant.restore(variant.plan(plan))) == dumps(canonical_json(plan, catalog))
    assert len(variant.plan(plan)) == len(plan)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_broken_plan_has_the_same_faults_at_the_same_places(data: st.DataObject) -> None:
    catalog = data.draw(described(catalogs()))
    plan = data.draw(mutated(data.draw(plans(catalog))))
    if data.draw(st.booleans()):
        plan = data.draw(mutated(plan))
    variant = data.draw(variants(catalog, ("shuffled", "renamed")))
    made = variant.plan(plan)
    assert faults(made, variant.catalog) == faults(plan, catalog, variant.names)
    assert variant.restore(made) == (canonical_json(plan, catalog) if is_shaped(plan) else plan)


@given(catalogs_with_rules(), st.data())
@settings(max_examples=25, deadline=None)
def test_rules_over_several_arguments_mean_the_same_under_new_names(catalog: Catalog, data: st.DataObject) -> None:
    variant = data.draw(variants(catalog, ("shuffled", "renamed")))
    assert variant.unchanged_parameters == {}
    for _ in range(3):
        plan = [{"type": data.draw(st.sampled_from(catalog.names)), "args": data.draw(arguments)}]
        made = variant.plan(plan)
        assert faults(made, variant.catalog) == faults(plan, catalog, variant.names)
        assert variant.restore(made) == plan


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_plans_are_equivalent_exactly_where_their_variants_are(data: st.DataObject) -> None:
    catalog = data.draw(catalogs())
    plan = data.draw(plans(catalog))
    other = data.draw(st.sampled_from([plan, data.draw(mutated(plan)), data.draw(plans(catalog))]))
    variant = data.draw(variants(catalog, ("shuffled", "renamed")))
    if not is_shaped(other) or any(not all(isinstance(i, int) for i in step.get("after", [])) for step in other):
        return
    before = bijection(Plan.from_json(plan), Plan.from_json(other))
    after = bijection(Plan.from_json(variant.plan(plan)), Plan.from_json(variant.plan(other)))
    assert (before is None) == (after is None)


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_the_same_seed_gives_the_same_variant(data: st.DataObject) -> None:
    catalog = data.draw(described(catalogs()))
    seed = data.draw(st.integers(0, 9))
    for make in (
        lambda: shuffled(catalog, seed),
        lambda: renamed(catalog, seed),
        lambda: renamed(catalog, seed, style=NameStyle.REWORDED),
        lambda: with_distractors(catalog, POOL, 2, seed),
        lambda: confusable(catalog, seed, used=catalog.names, count=2),
    ):
        first, second = make(), make()
        assert first == second
        assert first.catalog.hash != catalog.hash
        assert Catalog.from_json(first.catalog.to_json()).hash == first.catalog.hash


@given(st.dictionaries(st.sampled_from("abcdef"), st.sampled_from("abcdefgh"), max_size=6))
def test_a_renaming_becomes_a_permutation(names: dict[str, str]) -> None:
    if len(set(names.values())) < len(names):
        with pytest.raises(ValueError, match="same new name"):
            permutation(names)
        return
    whole = permutation(names)
    assert sorted(whole) == sorted(whole.values())
    assert all(whole.get(old, old) == new for old, new in names.items())


@given(described(catalogs()), st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_each_near_copy_says_in_the_prompt_why_it_is_wrong(catalog: Catalog, seed: int) -> None:
    variant = confusable(catalog, seed, used=catalog.names, count=3 * len(catalog.workers))
    copies = [worker for worker in variant.catalog.workers if worker.name not in catalog.names]
    assert len(copies) == 3 * len(catalog.workers)
    for twist in Twist:
        assert sum(SAID[twist] in signature(worker) for worker in copies) == len(catalog.workers)
    assert [worker for worker in variant.catalog.workers if worker.name in catalog.names] == list(catalog.workers)


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_plans_are_valid_or_empty_once_workers_are_gone(data: st.DataObject) -> None:
    catalog = data.draw(catalogs().filter(lambda c: len(c.workers) > 1))
    plan = data.draw(plans(catalog))
    gone = data.draw(st.sets(st.sampled_from(catalog.names), min_size=1, max_size=len(catalog.workers) - 1))
    before = data.draw(variants(catalog, ("shuffled", "renamed")))
    variant = before.then(without(before.catalog, [before.names.worker(name) for name in gone]))
    made = variant.plan(plan)
    assert check_plan(made, variant.catalog).valid
    if gone & {step["type"] for step in plan}:
        assert made == []
    else:
        assert variant.restore(made) == canonical_json(plan, catalog)


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_two_changes_as_one_do_what_they_do_one_after_the_other(data: st.DataObject) -> None:
    catalog = data.draw(catalogs())
    plan = data.draw(json_values() | plans(catalog))
    first = data.draw(variants(catalog, ("renamed", "shuffled", "more")))
    second = data.draw(variants(first.catalog, ("renamed", "shuffled")))
    both = first.then(second)
    assert dumps(both.plan(plan)) == dumps(second.plan(first.plan(plan)))
    assert both.restore(both.plan(plan)) == first.restore(first.plan(plan))
    assert both.catalog == second.catalog
    other = renamed(POOL, 1)
    with pytest.raises(CatalogMismatchError):
        first.then(other)


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_the_changed_plan_makes_the_same_calls_and_gets_the_same_results(data: st.DataObject) -> None:
    """The plan is run again on the record of the original one; each call goes to the record under its old name."""
    catalog = data.draw(catalogs())
    plan = data.draw(plans(catalog))
    result = st.fixed_dictionaries({key: SCALARS for key in ("a", "b", "c", "city", "x y", "é", "d.e", "f~g", "h/i")})
    results = [data.draw(result) | {"type": 1, "args": 2} for _ in plan]
    variant = data.draw(variants(catalog))
    calls = recorded_calls(Plan.from_json(plan), results)
    again = recorded_calls(Plan.from_json(variant.plan(plan)), results)
    replay = Replay(calls)
    for call, expected in zip(again, results, strict=True):
        [old] = variant.names.inverse().plan([{"type": call.worker, "args": call.args}])
        assert replay.call(old["type"], old["args"]) == expected
    assert replay.missing == 0
