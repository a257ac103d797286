"""A tiny catalog with rows, and tiny models built on the spot."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch

from plansmith.contract.catalog import Catalog, Worker
from plansmith.contract.records import Example, Split
from plansmith.data.build import DataSet
from plansmith.data.manifest import Counts, Families, Manifest
from plansmith.training.encode import texts_of
from plansmith.training.model import build_tiny

torch.set_num_threads(1)

CITIES = ("Oslo", "São Paulo", "東京", "Quito", "Leipzig", "New York", "Accra", "Hà Nội")


@pytest.fixture(scope="session")
def catalog() -> Catalog:
    text = {"type": "string"}
    forecast = {"type": "object", "properties": {"city": text, "days": {"type": "integer"}}, "required": ["city"]}
    advice = {"type": "object", "properties": {"text": text}, "required": ["text"]}
    return Catalog(
        "tiny",
        [
            Worker(name="weather_get", description="Weather in a city.", args=forecast),
            Worker(name="say", description="Say something.", args=advice),
        ],
    )


@pytest.fixture(scope="session")
def rows() -> list[Example]:
    made: list[Example] = []
    for index in range(16):
        city = CITIES[index % len(CITIES)]
        plan = [{"type": "weather_get", "args": {"city": city, "days": index}}]
        if index % 3 == 0:
            plan.append({"type": "say", "args": {"text": {"$from": "/0/summary"}}})
        query = f"Weather in {city} for {index} days" + (", and say it" if index % 3 == 0 else "")
        made.append(
            Example(
                id=f"row-{index}",
                query=query,
                plan=plan if index != 7 else [],
                family="weather",
                source="test",
                split=Split.TRAIN,
                part="train",
            )
        )
    return made


@pytest.fixture(scope="session")
def data(catalog: Catalog, rows: list[Example]) -> DataSet:
    return data_set(catalog, rows)


def data_set(catalog: Catalog, rows: list[Example]) -> DataSet:
    text = "".join(row.model_dump_json() for row in rows)
    manifest = Manifest(
        source="test",
        licence="none",
        seed=0,
        catalog_name=catalog.name,
        catalog_hash=catalog.hash,
        counts=Counts(read=len(rows), train=len(rows), val=0, test={}, rejects={}),
        families=Families(train=1, test={}),
        warnings={},
        notes={},
        files={"train.jsonl": hashlib.sha256(text.encode()).hexdigest()},
        inputs="0" * 64,
        config={},
    )
    return DataSet(catalog, rows, [], [], manifest)


@pytest.fixture(scope="session")
def make_data():
    return data_set


@pytest.fixture(scope="session")
def base(data: DataSet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Gemma 3 whose sliding window (64 tokens) is shorter than the catalog's prefix."""
    out = tmp_path_factory.mktemp("base")
    build_tiny(out, texts_of(data), vocabulary=400)
    return out
