"""Settings: YAML and flags to a typed object, and what a user reads when something is wrong."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field, model_validator

from plansmith.contract.errors import InputError
from plansmith.contract.settings import Settings, iter_settings, load_settings


class Mode(StrEnum):
    FAST = "fast"
    EXACT = "exact"


class FromScript(Settings):
    kind: Literal["script"] = "script"
    path: Path
    extra: list[Path] = Field(default_factory=list)


class FromPackage(Settings):
    kind: Literal["package"] = "package"
    longest: int = 4


class Data(Settings):
    source: Annotated[FromScript | FromPackage, Field(discriminator="kind")]
    count: int = Field(default=100, ge=1)
    """How many rows."""


class Training(Settings):
    steps: int = 10
    """Optimizer steps."""
    warmup: int = 0
    rate: float = 1e-3
    limit: int | None = None
    mode: Mode = Mode.FAST

    @model_validator(mode="after")
    def _warmup_fits(self) -> Training:
        if self.warmup > self.steps:
            raise ValueError(f"warmup {self.warmup} is longer than steps {self.steps}; lower it")
        return self


class Whole(Settings):
    name: str
    data: Data
    training: Training = Training()


TEXT = """\
name: trial
data:
  source:
    kind: script
    path: queries.py
training:
  steps: 20
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "trial.yaml"
    path.write_text(TEXT)
    return path


def refusal(file: Path, text: str | None = None, flags: list[str] | None = None) -> str:
    if text is not None:
        file.write_text(text)
    with pytest.raises(InputError) as caught:
        load_settings(Whole, file, flags or [])
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_the_file_gives_values_and_the_class_gives_the_rest(file: Path):
    whole = load_settings(Whole, file)
    assert (whole.name, whole.training.steps, whole.data.count, whole.training.mode) == ("trial", 20, 100, Mode.FAST)
    assert whole.data.source == FromScript(path=Path("queries.py"))


def test_flags_override_the_file_at_any_depth_and_in_both_forms(file: Path):
    flags = ["--training.steps", "30", "--data.source.path=other.py", "--name", "123", "--training.limit", "null"]
    whole = load_settings(Whole, file, flags)
    assert whole.training.steps == 30
    assert whole.data.source == FromScript(path=Path("other.py"))
    assert (whole.name, whole.training.limit) == ("123", None)


def test_flags_take_numbers_below_zero_small_numbers_members_and_lists(file: Path):
    flags = ["--training.limit", "-1", "--training.rate", "1e-4", "--training.mode", "exact"]
    whole = load_settings(Whole, file, [*flags, "--data.source.extra", '["a","b"]'])
    assert (whole.training.limit, whole.training.rate, whole.training.mode) == (-1, 1e-4, Mode.EXACT)
    assert whole.data.source == FromScript(path=Path("queries.py"), extra=[Path("a"), Path("b")])


def test_the_environment_changes_nothing(file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NAME", "from-environment")
    monkeypatch.setenv("TRAINING", '{"steps": 1}')
    whole = load_settings(Whole, file, ["--data.count", "7"])
    assert (whole.name, whole.training.steps, whole.data.count) == ("trial", 20, 7)


def test_an_unknown_key_is_named_with_file_line_and_the_closest_key(file: Path):
    message = refusal(file, TEXT + "  stepz: 3\n")
    assert message == f"{file}, line 8: training.stepz: unknown key; closest: 'steps'."


def test_an_unknown_key_inside_a_variant_is_named_without_the_variant(file: Path):
    message = refusal(file, TEXT.replace("path: queries.py", "path: queries.py\n    pathh: x"))
    assert f"{file}, line 6: data.source.pathh: unknown key; closest: 'path'" in message


def test_a_wrong_type_is_named_with_its_line_and_what_was_found(file: Path):
    message = refusal(file, TEXT.replace("20", "many"))
    assert message.startswith(f"{file}, line 7: training.steps: Input should be a valid integer")
    assert "'many'" in message


def test_a_wrong_type_in_a_flag_is_named_by_the_flag(file: Path):
    assert refusal(file, flags=["--data.count", "0"]).startswith("--data.count: Input should be greater than")


def test_values_that_do_not_go_together_are_named_by_their_section(file: Path):
    message = refusal(file, TEXT + "  warmup: 21\n")
    assert message == f"{file}, line 6: training: warmup 21 is longer than steps 20; lower it."


def test_a_missing_value_is_named(file: Path):
    assert refusal(file, TEXT.replace("name: trial\n", "")) == f"{file}: name: required, but not given."
    assert "line 3: data.source.path: required" in refusal(file, TEXT.replace("    path: queries.py\n", ""))


def test_every_problem_is_reported_at_once(file: Path):
    message = refusal(file, TEXT.replace("20", "many") + "colour: red\n")
    assert "training.steps" in message
    assert "colour: unknown key" in message


def test_bad_yaml_is_reported_with_its_line(file: Path):
    assert refusal(file, "name: trial\ndata: [1, 2\n").startswith(f"{file}, line 3: not usable YAML")
    assert refusal(file, "name: \x00\n").startswith(f"{file}: not usable YAML")
    assert refusal(file, "- a\n- b\n").startswith(f"{file}: expected a mapping of sections")
    assert refusal(file, "name: !!python/object:os.system {}\n").startswith(f"{file}, line 1: not usable YAML")


def test_a_key_given_twice_is_refused(file: Path):
    assert "line 8: not usable YAML: key 'steps' is given twice" in refusal(file, TEXT + "  steps: 3\n")


def test_a_missing_file_is_one_clear_message(tmp_path: Path):
    assert "absent.yaml' cannot be read: No such file" in refusal(tmp_path / "absent.yaml")


def test_an_empty_file_misses_what_is_required(file: Path):
    assert "name: required" in refusal(file, "")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--training.stepz", "3"], "unknown setting '--training.stepz'; closest: 'training.steps'"),
        (["--training.steps"], "expected a value after '--training.steps'"),
        (["--training.step", "3"], "unknown setting '--training.step'"),
        (["stray"], "unexpected argument 'stray'"),
    ],
)
def test_a_flag_that_cannot_be_used_is_named(file: Path, flags: list[str], words: str):
    assert words in refusal(file, flags=flags)


def test_docstrings_are_the_help():
    settings = {setting.name: setting for setting in iter_settings(Whole)}
    assert (settings["training.steps"].help, settings["training.steps"].default) == ("Optimizer steps.", "10")
    assert settings["data.count"].help == "How many rows."
    assert (settings["name"].type, settings["name"].default) == ("str", "required")
    assert settings["training.mode"].type == "fast|exact"
    assert settings["training.limit"].type == "int|null"
    assert {"data.source.path", "data.source.longest"} <= settings.keys()
