"""Preparing base models: cached, complete or absent, refused with a reason."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from plansmith.contract.errors import InputError
from plansmith.contract.progress import Silent
from plansmith.contract.store import StorageError
from plansmith.data.build import DataSet
from plansmith.training.config import ModelConfig
from plansmith.training.encode import texts_of
from plansmith.training.files import make_directory
from plansmith.training.model import base_hash, cache_directory, load_tokenizer, prepare_base


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PLANSMITH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_tiny_model_is_made_once_and_is_the_same_elsewhere(
    data: DataSet, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ModelConfig(base="tiny-random")
    base = prepare_base(config, texts=texts_of(data), progress=Silent())
    assert base.parent == cache
    written = (base / "model.safetensors").stat().st_mtime_ns
    assert prepare_base(config, texts=texts_of(data), progress=Silent()) == base
    assert (base / "model.safetensors").stat().st_mtime_ns == written
    monkeypatch.setenv("PLANSMITH_CACHE", str(tmp_path / "other"))
    other = prepare_base(config, texts=texts_of(data), progress=Silent())
    assert other != base
    assert base_hash(other) == base_hash(base)
    assert (
        load_tokenizer(base).decode(load_tokenizer(base).encode("São 東京 🙂", add_special_tokens=False))
        == "São 東京 🙂"
    )


def test_a_directory_is_used_as_it_is_and_trimmed_where_asked(data: DataSet, base: Path, cache: Path) -> None:
    as_it_is = ModelConfig(base=str(base), trim_vocabulary=False)
    assert prepare_base(as_it_is, texts=[], progress=Silent()) == base
    trimmed = prepare_base(ModelConfig(base=str(base), keep_merges=0), texts=["weather"], progress=Silent())
    assert trimmed.parent == cache
    assert len(load_tokenizer(trimmed)) < len(load_tokenizer(base))
    more = prepare_base(ModelConfig(base=str(base), keep_merges=0), texts=texts_of(data), progress=Silent())
    assert more != trimmed


def test_unusable_bases_are_refused(base: Path, tmp_path: Path) -> None:
    def message(name: str) -> str:
        with pytest.raises(InputError) as caught:
            prepare_base(ModelConfig(base=name, trim_vocabulary=False), texts=[], progress=Silent())
        return str(caught.value)

    assert "neither 'gemma3-270m' nor 'tiny-random' nor a directory" in message("gpt-9")
    assert "needs 'config.json'" in message(str(tmp_path))
    for name in ("tokenizer.json", "tokenizer_config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((base / name).read_bytes())
    config = json.loads((base / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(json.dumps(config | {"auto_map": {"AutoModel": "x.Y"}}), encoding="utf-8")
    assert "Python code, which is never run" in message(str(tmp_path))


def test_base_hash_sees_weights_and_tokenizer(base: Path, tmp_path: Path) -> None:
    for path in base.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    assert base_hash(tmp_path) == base_hash(base)
    (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")
    assert base_hash(tmp_path) != base_hash(base)


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PLANSMITH_CACHE", raising=False)
    assert cache_directory() == Path.home() / ".cache" / "plansmith"


def test_a_directory_whose_making_fails_does_not_appear(tmp_path: Path) -> None:
    def build(draft: Path) -> None:
        (draft / "half").write_text("x", encoding="utf-8")
        raise OSError(28, "No space left on device")

    with pytest.raises(StorageError, match="No space left"):
        make_directory(tmp_path / "made", build)
    assert list(tmp_path.iterdir()) == []


def test_a_process_killed_while_making_leaves_no_directory_and_the_next_cleans_up(tmp_path: Path) -> None:
    script = (
        "import os, signal\n"
        "from pathlib import Path\n"
        "from plansmith.training.files import make_directory\n"
        "def build(draft):\n"
        "    (draft / 'half').write_text('x')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        f"make_directory(Path({str(tmp_path / 'made')!r}), build)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], check=False, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == -9
    assert not (tmp_path / "made").exists()
    assert len(list(tmp_path.iterdir())) == 1
    make_directory(tmp_path / "made", lambda draft: (draft / "whole").write_text("y", encoding="utf-8") and None)
    assert [path.name for path in tmp_path.iterdir()] == ["made"]
    assert (tmp_path / "made" / "whole").read_text(encoding="utf-8") == "y"
