"""Suites: which items each variant has, that their plans fit its catalog, and that they come back from disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from plansmith.contract.catalog import Catalog, Worker
from plansmith.contract.check import check_plan
from plansmith.contract.errors import CatalogMismatchError, InputError
from plansmith.contract.records import Example, Split
from plansmith.eval.suites import INDEX, Suite, build_suites, load_suites, origin_id, save_suites
from plansmith.eval.variants_config import VariantKind, VariantsConfig

NAMES = ("fin_get_quote", "cal_add_event", "msg_send", "shop_refund", "geo_find_city", "med_get_dose")
CATALOG = Catalog(
    "six",
    [
        Worker(
            name=name,
            description=f"Does {name}.",
            args={"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
            returns={"type": "object", "properties": {"x": {"type": "string"}}},
        )
        for name in NAMES
    ],
)
OTHERS = Catalog("garden", [Worker(name=f"garden_{n}", args={"type": "object"}) for n in range(12)])


def example(number: int, *workers: str, split: Split = Split.TEST, part: str = "seen") -> Example:
    plan: list[dict[str, Any]] = [{"type": name, "args": {"a": f"v{number}"}} for name in workers]
    return Example(
        id=f"item-{number}",
        query=f"query {number}",
        plan=plan,
        family=" > ".join(workers),
        source="s",
        split=split,
        part=part,
        results=[{"x": "r"} for _ in plan],
    )


TEST = [example(i, NAMES[i % 6], part="seen" if i < 12 else "unseen") for i in range(18)]
CHAINS = [example(20 + i, NAMES[0], NAMES[i % 2 + 1]) for i in range(4)]
EMPTY = [example(30, part="unseen")]
TRAIN = [example(100 + i, NAMES[i % 6], split=Split.TRAIN, part="train") for i in range(50)]
VAL = [example(200, NAMES[0], split=Split.VAL, part="val")]
ROWS = [*TRAIN, *VAL, *TEST, *CHAINS, *EMPTY]


@pytest.fixture
def garden(tmp_path: Path) -> Path:
    OTHERS.save(tmp_path / "garden.json")
    return tmp_path / "garden.json"


def suites(garden: Path | None = None, *, seed: int = 1, **more: Any) -> dict[str, Suite]:
    config = VariantsConfig(distractor_catalog=garden, **more)
    return {suite.name: suite for suite in build_suites(ROWS, CATALOG, config, seed=seed)}


def test_without_variants_there_is_the_plain_suite_of_the_test_rows():
    found = suites()
    assert list(found) == ["plain"]
    assert list(found["plain"].examples) == [*TEST, *CHAINS, *EMPTY]
    assert found["plain"].catalog == CATALOG


def test_rows_of_training_are_asked_in_a_suite_of_their_own():
    found = suites(seen_queries=7)
    assert list(found) == ["plain", "seen_queries"]
    picked = found["seen_queries"].examples
    assert len(picked) == 7
    assert {row.id for row in picked} <= {row.id for row in TRAIN}
    assert {row.part for row in picked} == {"train"}
    assert {row.id for row in suites(seen_queries=5)["seen_queries"].examples} < {row.id for row in picked}


def test_every_variant_has_its_part_ids_of_its_own_and_plans_that_fit(garden: Path):
    found = suites(garden, kinds=tuple(VariantKind), limit=None)
    assert list(found) == ["plain", "shuffled", "renamed", "distractors", "confusable", "no_worker_1", "no_worker_2"]
    assert len({suite.catalog.hash for suite in found.values()}) == len(found)
    ids = [row.id for suite in found.values() for row in suite.examples]
    assert len(set(ids)) == len(ids)
    plain = {row.id: row for row in found["plain"].examples}
    for name, suite in list(found.items())[1:]:
        for row in suite.examples:
            kind = "no_worker" if name.startswith("no_worker") else name
            assert (row.part, row.id) == (kind, f"{origin_id(row.id)}@{kind}")
            origin = plain[origin_id(row.id)]
            assert (row.query, row.family, row.split) == (origin.query, origin.family, Split.TEST)
            assert check_plan(row.plan, suite.catalog).valid
            if kind != "no_worker":
                assert len(row.plan) == len(origin.plan)
                assert row.results == origin.results
    for name in ("shuffled", "renamed", "distractors", "confusable"):
        assert [origin_id(row.id) for row in found[name].examples] == list(plain)


def test_each_variant_does_what_its_name_says(garden: Path):
    found = suites(garden, kinds=tuple(VariantKind), distractor_count=5, confusable_count=4)
    assert sorted(found["shuffled"].catalog.names) == sorted(NAMES)
    assert found["shuffled"].catalog.names != NAMES
    assert set(found["renamed"].catalog.names).isdisjoint(NAMES)
    assert sum(name.startswith("garden_") for name in found["distractors"].catalog.names) == 5
    assert len(found["confusable"].catalog.workers) == 10
    assert len(found["no_worker_1"].catalog.workers) >= 3
    renamed = suites(garden, kinds=("renamed",), worker_rate=0, parameter_rate=0)["renamed"]
    assert renamed.catalog.names == NAMES


def test_an_item_of_no_worker_lost_every_worker_of_its_plan():
    found = suites(kinds=("no_worker",), limit=None)
    plans = {row.id: {step["type"] for step in row.plan} for row in [*TEST, *CHAINS, *EMPTY]}
    asked: list[str] = []
    for name in ("no_worker_1", "no_worker_2"):
        suite = found[name]
        for row in suite.examples:
            called = plans[origin_id(row.id)]
            assert called
            assert called.isdisjoint(suite.catalog.names)
            assert (row.plan, row.results) == ([], [])
            asked.append(origin_id(row.id))
    assert len(asked) == len(set(asked))
    assert len(asked) == len(TEST) + len(CHAINS), "the two halves of the workers cover every plan here"


def test_no_worker_takes_out_what_brings_most_items():
    def asked(*workers: tuple[str, ...]) -> set[tuple[str, ...]]:
        rows = {f"item-{i}": (example(i, *names), names) for i, names in enumerate(workers)}
        config = VariantsConfig(kinds=(VariantKind.NO_WORKER,), no_worker_groups=1)
        _, suite = build_suites([row for row, _ in rows.values()], CATALOG, config, seed=0)
        assert len(suite.catalog.workers) >= 3
        return {rows[origin_id(row.id)][1] for row in suite.examples}

    one, two, three, *others = NAMES
    single = [(name,) for name in others]
    assert asked(*[(one, two)] * 9, *[(three,)] * 3, *single) == {(one, two), (three,)}
    assert asked(*[(one, two, three)] * 2, *single * 2) == set(single)


def test_a_limit_takes_the_same_items_for_all_variants(garden: Path):
    kinds = ("shuffled", "renamed", "distractors", "confusable")
    found = suites(garden, kinds=kinds, limit=5)
    picked = [{origin_id(row.id) for row in found[name].examples} for name in kinds]
    assert picked == [picked[0]] * 4
    assert len(picked[0]) == 5
    more = suites(garden, kinds=("no_worker",), limit=5)
    assert sum(len(suite.examples) for name, suite in more.items() if name != "plain") == 5


def test_variants_can_be_made_of_some_parts_only():
    found = suites(kinds=("renamed",), parts=("unseen",), limit=None)
    assert {origin_id(row.id) for row in found["renamed"].examples} == {
        r.id for r in [*TEST, *EMPTY] if r.part == "unseen"
    }
    assert len(found["plain"].examples) == len(TEST) + len(CHAINS) + len(EMPTY)
    with pytest.raises(InputError, match="no test row is in the parts"):
        suites(kinds=("renamed",), parts=("handwritten",))


def test_another_seed_gives_other_variants_and_the_same_seed_the_same():
    kinds = ("shuffled", "renamed", "confusable")
    first, again, other = (suites(kinds=kinds, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert all(first[name].catalog != other[name].catalog for name in kinds)


def test_what_cannot_be_asked_is_refused(garden: Path):
    def build(rows: list[Example], **more: Any) -> None:
        build_suites(rows, CATALOG, VariantsConfig(**more), seed=0)

    with pytest.raises(InputError, match="none of 50 rows is a test row"):
        build(TRAIN)
    with pytest.raises(InputError, match="'item-0'; ids must be unique"):
        build([*TEST, TEST[0]])
    with pytest.raises(InputError, match="ends like that of a variant's item"):
        build([TEST[0].model_copy(update={"id": "item-0@renamed"})], kinds=("shuffled",))
    with pytest.raises(InputError, match="part named 'renamed'"):
        build([example(0, NAMES[0], part="renamed")], kinds=("renamed",))
    with pytest.raises(InputError, match="'no_worker' has no item"):
        build(EMPTY, kinds=("no_worker",))
    with pytest.raises(InputError, match="no plan of the varied rows calls a worker"):
        build(EMPTY, kinds=("confusable",))
    with pytest.raises(InputError, match="13 distractors are asked for, but only 12"):
        build(TEST, kinds=("distractors",), distractor_catalog=garden, distractor_count=13)
    with pytest.raises(InputError, match=r"nowhere\.json"):
        build(TEST, kinds=("distractors",), distractor_catalog=garden.with_name("nowhere.json"))


def test_a_config_that_does_not_fit_together_is_refused():
    with pytest.raises(ValidationError, match="distractor_catalog"):
        VariantsConfig(kinds=(VariantKind.DISTRACTORS,))
    with pytest.raises(ValidationError, match="named twice"):
        VariantsConfig(kinds=(VariantKind.RENAMED, VariantKind.RENAMED))


def test_suites_come_back_from_disk_in_their_order(garden: Path, tmp_path: Path):
    made = list(suites(garden, kinds=tuple(VariantKind), seen_queries=3).values())
    save_suites(tmp_path / "suites", made)
    assert load_suites(tmp_path / "suites") == made
    assert {path.name for path in (tmp_path / "suites" / "renamed").iterdir()} == {"catalog.json", "examples.jsonl"}
    save_suites(tmp_path / "suites", made[:2])
    assert load_suites(tmp_path / "suites") == made[:2]


def test_suites_that_were_changed_or_are_not_there_are_refused(tmp_path: Path):
    made = list(suites(kinds=("renamed",)).values())
    with pytest.raises(InputError, match="Save the suites first"):
        load_suites(tmp_path)
    save_suites(tmp_path, made)
    rows = tmp_path / "renamed" / "examples.jsonl"
    rows.write_text("".join(rows.read_text().splitlines(keepends=True)[1:]))
    with pytest.raises(InputError, match="changed after it was saved"):
        load_suites(tmp_path)
    save_suites(tmp_path, made)
    CATALOG.save(tmp_path / "renamed" / "catalog.json")
    with pytest.raises(CatalogMismatchError, match=CATALOG.hash):
        load_suites(tmp_path)
    (tmp_path / INDEX).write_text("{}")
    with pytest.raises(InputError, match="no index of suites"):
        load_suites(tmp_path)
    entry = '{"name":"../x","catalog":"","examples":""}'
    (tmp_path / INDEX).write_text(f'{{"version":1,"suites":[{entry}]}}')
    with pytest.raises(InputError, match="cannot be a folder"):
        load_suites(tmp_path)
    with pytest.raises(InputError, match="unique names"):
        save_suites(tmp_path, [made[0], made[0]])


def test_the_id_of_an_item_leads_to_its_origin():
    assert origin_id("item-3@renamed") == "item-3"
    assert origin_id("a@b@no_worker") == "a@b"
    assert origin_id("someone@example.org") == "someone@example.org"
