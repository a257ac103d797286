"""Copies of training rows stay right under every change of the catalog, and nothing else is touched."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from plansmith.contract.catalog import Catalog
from plansmith.contract.check import check_plan
from plansmith.contract.errors import InputError
from plansmith.contract.grounding import Query, invented
from plansmith.contract.plan import Plan
from plansmith.contract.progress import Silent
from plansmith.contract.records import Example, Split
from plansmith.data.augment import Augmenter, make_variants
from plansmith.data.augment_config import AugmentConfig
from plansmith.data.build import build_data, load_data
from plansmith.data.card import CardText
from plansmith.data.config import DataConfig
from plansmith.data.export import export_data
from plansmith.data.substitute import Pools, substituted
from plansmith.data.verify import normalise_query

from .conftest import RowWriter

ROOT = Path(__file__).parent.parent.parent
ASSISTANT = Catalog.load(ROOT / "examples/assistant/catalog.json")
CITIES = ("Oslo", "Porto", "New York", "Quito", "Leipzig", "Accra", "Zagreb", "Lima")
POOL = {
    "version": 1,
    "name": "garden",
    "workers": [
        {"name": f"garden_{name}", "description": f"{name.capitalize()} a plant.", "args": {"type": "object"}}
        for name in ("water", "prune", "plant", "weed", "mow", "rake")
    ],
}


def forecast(city: str, day: str = "Monday") -> dict[str, Any]:
    return {"type": "weather_get_forecast", "args": {"city": city, "date": day}}


def advice() -> dict[str, Any]:
    return {"type": "weather_advise_umbrella", "args": {"rain_chance": {"$from": "/0/rain_chance"}}}


def example(number: int, query: str, plan: list[dict[str, Any]], split: Split = Split.TRAIN) -> Example:
    return Example(id=f"row-{number}", query=query, plan=plan, family="", source="", split=split, part=split.value)


def rows() -> list[Example]:
    made: list[Example] = []
    for number in range(48):
        city, order = CITIES[number % len(CITIES)], f"B-{1000 + number}"
        if number % 3 == 0:
            made.append(example(number, f"Umbrella in {city} on Monday?", [forecast(city), advice()]))
        elif number % 3 == 1:
            plan = [{"type": "shop_get_order", "args": {"order_id": order}}]
            made.append(example(number, f"Where is order {order}?", plan))
        else:
            made.append(example(number, f"Weather in {city} on Monday, number {number}", [forecast(city)]))
    return made


def augmenter(config: AugmentConfig, *, seed: int = 1, held_out: frozenset[str] = frozenset()) -> Augmenter:
    pools = Pools(seed)
    for row in rows():
        pools.add(row)
    pool = Catalog.from_json(POOL) if config.distract else None
    return Augmenter(make_variants(ASSISTANT, pool, config, seed=seed), config, seed, pools, held_out)


shares = st.sampled_from([0.0, 0.25, 0.5, 1.0])


@st.composite
def configs(draw: st.DrawFn) -> AugmentConfig:
    names = ("shuffle", "rename", "worker_rate", "parameter_rate", "distract", "confuse", "remove", "substitute")
    values: dict[str, Any] = {name: draw(shares) for name in names}
    values |= {"catalogs": draw(st.integers(1, 6)), "copies": draw(st.sampled_from([0.5, 1.0, 2.5]))}
    values |= {"removed_rate": draw(st.sampled_from([0.1, 0.5, 1.0])), "distractor_catalog": "pool.json"}
    values |= {
        "style": draw(st.sampled_from(["masked", "reworded"])),
        "descriptions": draw(st.sampled_from(["keep", "explain", "drop"])),
    }
    return AugmentConfig.model_validate(values)


@settings(max_examples=60, deadline=None)
@given(configs(), st.integers(0, 3))
def test_every_copy_is_right_under_its_catalog_and_means_the_same(config: AugmentConfig, seed: int):
    made = augmenter(config, seed=seed)
    catalogs = {variant.catalog.hash: variant for variant in made.variants}
    for row in rows():
        for copy in made.copies(row):
            assert copy.catalog is not None
            variant = catalogs[copy.catalog]
            assert check_plan(copy.plan, variant.catalog).valid
            assert (copy.split, copy.part, copy.family) == (Split.TRAIN, "train", row.family)
            called = {step["type"] for step in row.plan}
            if called <= variant.removed:
                assert copy.plan == []
                continue
            assert not called & variant.removed
            back = variant.restore(copy.plan)
            assert [step["type"] for step in back] == [step["type"] for step in row.plan]
            assert not invented(Plan.from_json(back), Query(copy.query), ASSISTANT)
            if copy.query == row.query:
                assert back == row.plan
    assert not made.counted["copy_not_valid"]


def test_the_same_seed_makes_the_same_copies_whatever_other_rows_there_are():
    config = AugmentConfig(substitute=0.0)
    whole, alone = augmenter(config), augmenter(config)
    every = [copy for row in rows() for copy in whole.copies(row)]
    some = [copy for row in rows()[10:20] for copy in alone.copies(row)]
    assert some == [copy for copy in every if copy.id.partition("~")[0] in {row.id for row in rows()[10:20]}]
    assert every != [copy for row in rows() for copy in augmenter(config, seed=2).copies(row)]


@pytest.mark.parametrize(("copies", "least", "most"), [(0.5, 12, 36), (1.0, 48, 48), (2.0, 96, 96), (2.5, 108, 132)])
def test_there_are_as_many_copies_as_asked_for(copies: float, least: int, most: int):
    made = augmenter(AugmentConfig(copies=copies, remove=0.0))
    found = [copy for row in rows() for copy in made.copies(row)]
    assert least <= len(found) <= most
    assert len({copy.id for copy in found}) == len(found)
    assert made.counted["copies"] == len(found)


def test_changes_of_catalogs_are_exact_shares():
    variants = make_variants(ASSISTANT, None, AugmentConfig(catalogs=8, shuffle=1.0, rename=0.5, remove=0.25), seed=3)
    kinds = Counter(kind for variant in variants for kind in variant.name.split("+"))
    assert (kinds["shuffled"], kinds["renamed"], kinds["without"]) == (8, 4, 2)
    assert len({variant.catalog.hash for variant in variants}) == 8
    assert all(len(variant.removed) == 3 for variant in variants if variant.removed), "a quarter of twelve"


def test_a_plan_that_needs_removed_and_other_workers_goes_to_another_catalog():
    config = AugmentConfig(catalogs=8, copies=8, remove=1.0, removed_rate=0.25, rename=0.0, substitute=0.0)
    made = augmenter(config)
    assert any(variant.removed for variant in made.variants)
    copies = [copy for row in rows() for copy in made.copies(row)]
    emptied = [copy for copy in copies if not copy.plan]
    assert made.counted["plans_emptied"] == len(emptied) > 0
    assert made.counted["moved_to_another_catalog"] > 0


def test_a_copy_that_repeats_a_held_out_query_is_not_made():
    config = AugmentConfig(catalogs=2, rename=0.0, remove=0.0, substitute=1.0, copies=8)
    free = augmenter(config)
    queries = {normalise_query(copy.query) for row in rows() for copy in free.copies(row)}
    bound = augmenter(config, held_out=frozenset(queries - {normalise_query(row.query) for row in rows()}))
    assert {copy.query for row in rows() for copy in bound.copies(row)} <= {row.query for row in rows()}
    assert bound.counted["repeats_held_out_query"] > 0


def values(row: Example) -> list[Any]:
    return [value for step in row.plan for value in step["args"].values()]


def test_an_exchanged_value_changes_in_query_and_plan_alike():
    pools = Pools(1)
    for row in rows():
        pools.add(row)
    row = example(99, "Umbrella in Oslo on Monday?", [forecast("Oslo"), advice()])
    found = {made.query: made.plan for seed in range(20) if (made := substituted(row, ASSISTANT, pools, seed))}
    assert len(found) > 3
    for query, plan in found.items():
        city = plan[0]["args"]["city"]
        assert city in CITIES
        assert city != "Oslo"
        assert query == f"Umbrella in {city} on Monday?"
        assert plan == [forecast(city), advice()]


@pytest.mark.parametrize(
    ("query", "plan"),
    [
        ("Oslo or Oslo, weather on Monday?", [forecast("Oslo")]),
        ("Weather in Osloborg and Oslo on Monday?", [forecast("Oslo")]),
        ("Weather in oslo on Monday?", [forecast("Oslo")]),
        (
            "Weather in Oslo on Monday?",
            [forecast("Oslo"), {"type": "msg_send", "args": {"to": "Ada", "text": "Oslo is fine"}}],
        ),
        ("Weather in Oslo on Monday? FCO too.", [forecast("Oslo"), forecast("Rome")]),
        ("Nothing to do for you.", []),
    ],
)
def test_what_would_be_a_guess_is_left_alone(query: str, plan: list[dict[str, Any]]):
    pools = Pools(1)
    for number, city in enumerate(CITIES):
        pools.add(example(number, city, [forecast(city)]))
    row = example(0, query, plan)
    for seed in range(12):
        made = substituted(row, ASSISTANT, pools, seed)
        assert made is None or "Oslo" in made.query


def test_pools_do_not_depend_on_the_order_of_the_rows_and_are_bounded():
    many = [example(n, "", [forecast(f"Town{n}")]) for n in range(600)]
    forth, back = Pools(1), Pools(1)
    for row in many:
        forth.add(row)
    for row in reversed(many):
        back.add(row)
    place = ("weather_get_forecast", "city")
    assert forth.others(place, "x") == back.others(place, "x")  # pyright: ignore[reportArgumentType]
    assert len(forth.others(place, "x")) == 256  # pyright: ignore[reportArgumentType]


def test_distracting_workers_need_a_catalog():
    with pytest.raises(ValidationError, match="distractor_catalog"):
        AugmentConfig(distract=0.5)


@pytest.fixture
def config(tmp_path: Path, write_jsonl: RowWriter) -> DataConfig:
    (tmp_path / "assistant.json").write_text(json.dumps(ASSISTANT.to_json()))
    (tmp_path / "pool.json").write_text(json.dumps(POOL))
    path = write_jsonl({"query": row.query, "plan": row.plan} for row in rows())
    return DataConfig.model_validate(
        {
            "source": {"kind": "jsonl", "path": path, "catalog": tmp_path / "assistant.json"},
            "split": {"val": 4, "seen": 6, "unseen": 0},
            "augment": {"catalogs": 6, "copies": 2, "distract": 0.5, "distractor_catalog": tmp_path / "pool.json"},
        }
    )


def test_a_build_copies_training_rows_only_and_its_counts_add_up(config: DataConfig, tmp_path: Path):
    out = tmp_path / "out"
    manifest = build_data(config, out, seed=1, progress=Silent())
    plain = build_data(config.model_copy(update={"augment": None}), tmp_path / "plain", seed=1, progress=Silent())
    data, before = load_data(out), load_data(tmp_path / "plain")
    assert [row for row in data.train if row.catalog is None] == before.train
    assert (data.val, data.test) == (before.val, before.test)
    assert manifest.counts.augmented == len(data.train) - len(before.train) > 0
    assert manifest.counts.read == plain.counts.read
    assert set(data.catalogs) >= {row.catalog for row in data.train} - {None}
    for row in data.train:
        assert check_plan(row.plan, data.catalog_of(row)).valid
    (stage,) = [stage for stage in manifest.stages if stage.stage == "augment"]
    assert stage.read == len(before.train)
    assert stage.counted["copies"] == manifest.counts.augmented


def test_an_export_brings_the_changed_catalogs(config: DataConfig, tmp_path: Path):
    build_data(config, tmp_path / "out", seed=1, progress=Silent())
    export_data(tmp_path / "out", tmp_path / "shared", CardText("Demo"))
    assert (tmp_path / "shared/catalogs.json").read_bytes() == (tmp_path / "out/catalogs.json").read_bytes()
    export_data(tmp_path / "out", tmp_path / "shared", CardText("Demo"))


def test_copies_may_stand_for_their_rows(config: DataConfig, tmp_path: Path):
    assert config.augment is not None
    alone = config.augment.model_copy(update={"keep": False, "remove": 0.0})
    manifest = build_data(config.model_copy(update={"augment": alone}), tmp_path / "out", seed=1, progress=Silent())
    data = load_data(tmp_path / "out")
    assert all(row.catalog is not None for row in data.train)
    (stage,) = [stage for stage in manifest.stages if stage.stage == "augment"]
    missed = stage.counted.get("repeats_held_out_query", 0)
    assert 2 * manifest.counts.replaced == manifest.counts.augmented + missed


def test_a_data_set_without_copies_forgets_the_catalogs_of_an_earlier_one(config: DataConfig, tmp_path: Path):
    out = tmp_path / "out"
    build_data(config, out, seed=1, progress=Silent())
    assert (out / "catalogs.json").exists()
    build_data(config.model_copy(update={"augment": None}), out, seed=1, progress=Silent())
    assert not (out / "catalogs.json").exists()
    assert load_data(out).catalogs == {}


def test_a_changed_catalog_is_refused(config: DataConfig, tmp_path: Path):
    out = tmp_path / "out"
    build_data(config, out, seed=1, progress=Silent())
    path = out / "catalogs.json"
    path.write_text(path.read_text().replace("forecast", "forekast"))
    with pytest.raises(InputError, match=r"catalogs\.json"):
        load_data(out)


def test_the_pool_is_an_input_of_the_build(config: DataConfig, tmp_path: Path):
    first = build_data(config, tmp_path / "out", seed=1, progress=Silent())
    pool = tmp_path / "pool.json"
    pool.write_text(pool.read_text().replace("a plant", "some plant"))
    assert build_data(config, tmp_path / "out", seed=1, progress=Silent()).inputs != first.inputs
