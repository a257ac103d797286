"""The import table, read from the syntax trees: who may import whom, and what is heavy where."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
MAY_IMPORT = {
    "contract": {"contract"},
    "data": {"data", "contract"},
    "training": {"training", "contract", "data"},
    "serving": {"serving", "contract"},
    "eval": {"eval", "contract", "serving"},
}
HEAVY = {
    "torch",
    "transformers",
    "peft",
    "accelerate",
    "datasets",
    "ray",
    "llguidance",
    "xgrammar",
    "safetensors",
    "gguf",
    "vllm",
}
NEVER = {"vllm"}
LOCAL_ENGINE = {
    f"serving/{name}.py"
    for name in (
        "local_engine",
        "live_sampling",
        "model_loading",
        "decoding",
        "grammar_masks",
        "packed_linear",
        "ragged_attention",
        "request_queue",
    )
}
"""The local engine: the only modules outside training that may load torch, because they run a model in process."""
LIGHT_ALWAYS = {"config.py", "policy_config.py", "__init__.py"}
LIGHT_TRAINING = ("plansmith.training.config", "plansmith.training.policy_config")
FLAT = {*MAY_IMPORT, "scripts"}


class Import(NamedTuple):
    file: str
    line: int
    module: str
    top_level: bool
    """Runs when the module is imported; not inside a function, not for the type checker only."""


def imports(path: Path) -> Iterator[Import]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    yield from _walk(tree, str(path.relative_to(ROOT)), top_level=True)


def _walk(node: ast.AST, file: str, *, top_level: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(file, child.lineno, name.name, top_level) for name in child.names)
        elif isinstance(child, ast.ImportFrom):
            package = "." * child.level + (child.module or "")
            yield from (Import(file, child.lineno, f"{package}.{name.name}", top_level) for name in child.names)
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from _walk(child, file, top_level=False)
        else:
            inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from _walk(child, file, top_level=top_level and not inside)


@cache
def of_stage(stage: str) -> list[Import]:
    return [found for path in sorted((ROOT / stage).rglob("*.py")) for found in imports(path)]


@cache
def of_command_line() -> list[Import]:
    own = ROOT / "src" / "plansmith"
    paths = [*own.glob("*.py"), *(own / "commands").glob("*.py")]
    return [found for path in sorted(paths) for found in imports(path)]


def ours(found: Import) -> str | None:
    """Which part of plansmith an import names."""
    parts = found.module.split(".")
    return parts[1] if parts[0] == "plansmith" and len(parts) > 1 else None


@pytest.mark.parametrize("stage", MAY_IMPORT)
def test_a_stage_imports_only_what_the_table_allows(stage: str):
    allowed = MAY_IMPORT[stage] | {"__version__"}
    wrong = [found for found in of_stage(stage) if (part := ours(found)) is not None and part not in allowed]
    assert wrong == []


@pytest.mark.parametrize("stage", MAY_IMPORT)
def test_nobody_uses_relative_or_flat_names(stage: str):
    flat = [found for found in of_stage(stage) if found.module.startswith(".") or found.module.split(".")[0] in FLAT]
    assert flat == []


def test_nobody_imports_eval_the_command_line_or_scripts():
    for stage in MAY_IMPORT:
        names = {ours(found) for found in of_stage(stage)}
        assert not names & {"cli", "commands", "recipe", "stages", "scripts"}, stage
        assert stage == "eval" or "eval" not in names


@pytest.mark.parametrize("stage", [stage for stage in MAY_IMPORT if stage != "training"])
def test_heavy_packages_are_loaded_at_module_level_only_where_a_model_runs(stage: str):
    wrong = [
        found
        for found in of_stage(stage)
        if found.top_level and found.module.split(".")[0] in HEAVY and found.file not in LOCAL_ENGINE
    ]
    assert wrong == []


def test_the_local_engine_is_loaded_by_nobody_at_module_level():
    engine = {f"plansmith.{file.removesuffix('.py').replace('/', '.')}" for file in LOCAL_ENGINE}
    everything = [found for stage in MAY_IMPORT for found in of_stage(stage)] + of_command_line()
    wrong = [
        found
        for found in everything
        if found.top_level and found.file not in LOCAL_ENGINE and found.module.rpartition(".")[0] in engine
    ]
    assert wrong == []


def test_config_modules_and_packages_stay_light():
    for stage in MAY_IMPORT:
        wrong = [
            found
            for found in of_stage(stage)
            if Path(found.file).name in LIGHT_ALWAYS and found.top_level and found.module.split(".")[0] in HEAVY
        ]
        assert wrong == []


def test_the_command_line_loads_no_heavy_package_at_module_level():
    assert [found for found in of_command_line() if found.top_level and found.module.split(".")[0] in HEAVY] == []
    assert [
        found
        for found in of_command_line()
        if found.top_level and ours(found) == "training" and not found.module.startswith(LIGHT_TRAINING)
    ] == []


def test_the_entry_point_imports_only_the_standard_library_at_module_level():
    import sys

    found = [item for item in imports(ROOT / "src" / "plansmith" / "cli.py") if item.top_level]
    outside = {item.module.split(".")[0] for item in found} - sys.stdlib_module_names
    assert outside == {"plansmith"}
    assert [item.module for item in found if item.module.startswith("plansmith.")] == ["plansmith.__version__"]


def test_vllm_is_a_process_and_never_an_import():
    everything = [found for stage in MAY_IMPORT for found in of_stage(stage)]
    assert [found for found in everything if found.module.split(".")[0] in NEVER] == []
