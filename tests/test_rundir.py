"""Run directory: what a stage finds when it is asked to run again, and one process at a time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from plansmith.contract.errors import InputError
from plansmith.rundir import RunDirectory, State

INPUTS = {"training": {"steps": 20, "rate": 1e-3}, "data": "abc"}


def test_a_stage_is_new_then_partial_then_done(tmp_path: Path):
    run = RunDirectory(tmp_path)
    assert run.state("train", INPUTS) is State.NEW
    run.mark("train", INPUTS, done=False)
    assert run.state("train", INPUTS) is State.PARTIAL
    run.mark("train", INPUTS, done=True)
    assert RunDirectory(tmp_path).state("train", dict(reversed(INPUTS.items()))) is State.DONE
    assert run.state("eval", INPUTS) is State.NEW


def test_other_inputs_make_a_stage_stale_and_what_changed_is_named(tmp_path: Path):
    run = RunDirectory(tmp_path)
    run.mark("train", INPUTS, done=True)
    changed = {"training": {"steps": 40, "rate": 1e-3}, "data": "abc", "seed": 2}
    assert run.state("train", changed) is State.STALE
    assert run.differences("train", changed) == ["seed: null -> 2", "training.steps: 20 -> 40"]


def test_an_unreadable_stamp_file_counts_as_nothing_made(tmp_path: Path):
    run = RunDirectory(tmp_path)
    run.mark("train", INPUTS, done=True)
    run.stamps_file.write_text('{"version": 1, "sta')
    assert run.state("train", INPUTS) is State.NEW


def test_earlier_work_is_moved_aside_and_never_overwritten(tmp_path: Path):
    run = RunDirectory(tmp_path)
    for content in ("first", "second"):
        (tmp_path / "train").mkdir()
        (tmp_path / "train" / "adapter").write_text(content)
        run.set_aside("train")
    assert (tmp_path / "train.1" / "adapter").read_text() == "first"
    assert (tmp_path / "train.2" / "adapter").read_text() == "second"
    assert run.set_aside("train") is None
    (tmp_path / "train.1" / "rows.1").write_text("")
    assert run.free_name("train.1/rows") == tmp_path / "train.1" / "rows.2"


def test_a_second_process_is_refused_and_a_dead_one_leaves_no_lock(tmp_path: Path):
    code = (
        "import sys, pathlib; from plansmith.rundir import RunDirectory\n"
        "with RunDirectory(pathlib.Path(sys.argv[1])).locked():\n"
        "    print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(InputError, match="another plansmith process"), RunDirectory(tmp_path).locked():
            pass
        other.kill()
    with RunDirectory(tmp_path).locked():
        pass
