"""Every file in configs/ parses, and says where its run goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from plansmith.contract.settings import iter_settings
from plansmith.recipe import Recipe, load_recipe

ROOT = Path(__file__).parent.parent
CONFIGS = sorted((ROOT / "configs").rglob("*.yaml"))


def test_the_recipes_of_the_readme_are_there():
    assert {path.stem for path in CONFIGS} >= {"quickstart", "smoke", "teacher", "travel-cpu", "qwen2.5-1.5b"}
    assert {path.suffix for path in (ROOT / "configs").rglob("*") if path.is_file()} == {".yaml"}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_parses_and_is_named_like_its_file(path: Path):
    recipe = load_recipe(path)
    assert recipe.name == path.stem
    assert recipe.directory == Path("out") / path.stem


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_resolved_recipe_can_be_read_back(path: Path):
    recipe = load_recipe(path)
    assert Recipe.model_validate_json(recipe.model_dump_json()) == recipe


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_files_that_a_config_names_are_in_the_repository(path: Path):
    source = load_recipe(path).data.source
    if source.kind == "script":
        named = [source.path, source.catalog or source.path.parent / "catalog.json", *source.extra]
        assert [str(file) for file in named if not (ROOT / file).is_file()] == []


def test_every_setting_has_a_meaning():
    kinds = {"data.source.kind", "data.benchmarks.kind", "queries.sources.kind", "teacher.kind"}
    assert [item.name for item in iter_settings(Recipe) if not item.help and item.name not in kinds] == []
