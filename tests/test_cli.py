"""The command line: what a user types, what comes back, and with which exit code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from plansmith import __version__
from plansmith.cli import COMMANDS, main, split_settings
from plansmith.doctor import PACKAGES
from plansmith.rundir import RunDirectory

ROOT = Path(__file__).parent.parent
CATALOG = str(ROOT / "tests" / "golden" / "demo_catalog.json")
GOOD = '[{"type":"time_now","args":{}}]'
HEAVY = {"torch", "transformers", "peft", "scipy", "numpy", "rich", "pydantic", "yaml", "jsonschema_rs"}

Captured = pytest.CaptureFixture[str]


def plansmith(*arguments: str, **options: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "plansmith.cli", *arguments]
    return subprocess.Popen(command, text=True, cwd=ROOT, stderr=subprocess.PIPE, **options)


def rows_of(capsys: Captured) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def refusal(capsys: Captured, *arguments: str, code: int = 2) -> str:
    """The message of a command that must end with a code, one message and no traceback."""
    assert main(arguments) == code
    captured = capsys.readouterr()
    assert captured.err.startswith("plansmith: ")
    assert "Traceback" not in captured.err
    return captured.err


@pytest.mark.parametrize("argument", ["--help", "--version"])
def test_help_and_version_load_nothing_heavy(argument: str):
    code = (
        "import sys; from plansmith.cli import main; code = main([sys.argv[1]]); "
        f"found = {HEAVY!r} & set(sys.modules); assert not found, found; sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code, argument], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert ("pipeline" in done.stdout) if argument == "--help" else (done.stdout == f"plansmith {__version__}\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_every_command_teaches_with_an_example(command: str, capsys: Captured):
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert f"plansmith {command} " in capsys.readouterr().out.split("\nExample", 1)[1]


def test_no_command_shows_the_help_and_counts_as_a_mistake(capsys: Captured):
    assert main([]) == 2
    assert "commands:" in capsys.readouterr().out


def test_a_mistyped_command_is_answered_with_the_closest(capsys: Captured):
    assert "unknown command 'trian'; closest: 'train'" in refusal(capsys, "trian")


def test_flags_of_train_that_do_not_go_together_are_refused(capsys: Captured):
    command = ("train", "--config", str(ROOT / "configs" / "smoke.yaml"), "--stage", "policy")
    assert "--dry-run shows the supervised stage" in refusal(capsys, *command, "--dry-run")
    assert "give --dry-run too" in refusal(capsys, *command, "--row", "x")


def test_settings_are_taken_out_of_a_command_line():
    plain, settings = split_settings(["q", "--a.b", "1", "--config", "c.yaml", "--c.d=-2", "--", "--e.f", "x"])
    assert plain == ["q", "--config", "c.yaml", "--", "--e.f", "x"]
    assert settings == ["--a.b", "1", "--c.d=-2"]


# plansmith check


def test_a_valid_plan_ends_with_0_and_its_canonical_form(tmp_path: Path, capsys: Captured):
    file = tmp_path / "plan.json"
    file.write_text('[ {"args": {"exchange": "NYSE", "symbol": "AAPL"}, "type": "fin_get_quote"} ]')
    assert main(["check", "--catalog", CATALOG, "--plan", str(file)]) == 0
    canonical = '[{"type":"fin_get_quote","args":{"symbol":"AAPL","exchange":"NYSE"}}]'
    line = '{"id":null,"valid":true,"findings":[],"repairs":[],"plan":' + canonical + "}\n"
    assert capsys.readouterr().out == line


def test_an_invalid_plan_ends_with_1_and_every_fault(tmp_path: Path, capsys: Captured):
    file = tmp_path / "plan.json"
    file.write_text('[{"type":"time_nw","args":{}},{"type":"fin_get_quote","args":{"sym":"A"}}]')
    assert main(["check", "--catalog", CATALOG, "--plan", str(file)]) == 1
    (row,) = rows_of(capsys)
    assert (row["valid"], row["plan"]) == (False, None)
    assert {finding["fault"] for finding in row["findings"]} == {"unknown_worker", "missing_arg", "unknown_arg"}
    assert set(row["findings"][0]) == {"fault", "severity", "step", "path", "message"}


def test_a_plan_is_read_from_standard_input():
    process = plansmith(*("check", "--catalog", CATALOG, "--plan", "-"), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    out, err = process.communicate(GOOD)
    assert (process.returncode, err, json.loads(out)["valid"]) == (0, "", True)


def test_rows_hold_plans_or_texts(tmp_path: Path, capsys: Captured):
    file = tmp_path / "rows.jsonl"
    rows = [
        {"id": "a", "plan": json.loads(GOOD)},
        {"id": 2, "text": GOOD},
        {"id": "c", "text": "no plan"},
        {"plan": []},
    ]
    file.write_text("\n".join(map(json.dumps, rows)))
    assert main(["check", "--catalog", CATALOG, "--plan", str(file), "--jsonl"]) == 1
    assert [(row["id"], row["valid"]) for row in rows_of(capsys)] == [
        ("a", True),
        (2, True),
        ("c", False),
        (None, True),
    ]


def test_a_plan_that_is_a_string_is_no_text_to_parse(tmp_path: Path, capsys: Captured):
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"id": "a", "plan": "[]"}))
    assert main(["check", "--catalog", CATALOG, "--plan", str(file), "--jsonl"]) == 1
    assert rows_of(capsys)[0]["findings"][0]["fault"] == "not_array"


def test_a_key_given_twice_inside_a_rows_plan_is_found(tmp_path: Path, capsys: Captured):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"id":"a","plan":[{"type":"time_now","args":{},"args":{}}]}\n')
    assert main(["check", "--catalog", CATALOG, "--plan", str(file), "--jsonl"]) == 1
    assert rows_of(capsys)[0]["findings"][0]["fault"] == "duplicate_key"


def test_bad_rows_are_named_by_their_line_and_the_others_are_checked(tmp_path: Path, capsys: Captured):
    file = tmp_path / "rows.jsonl"
    bad = [b"{", b"[]", b'{"id":"x"}', b'{"id":"y","text":7}', b'{"plan":[],"text":"[]"}', b'{"id":1e999,"plan":[]}']
    bad += [b'{"id":"\xff","plan":[]}', b'{"id":' + b"[" * 100_000]
    file.write_bytes(b'{"id":"a","plan":[]}\n\n' + b"\n".join(bad) + b'\n{"id":"z","plan":[]}\n')
    assert main(["check", "--catalog", CATALOG, "--plan", str(file), "--jsonl"]) == 2
    captured = capsys.readouterr()
    assert [json.loads(line)["id"] for line in captured.out.splitlines()] == ["a", "z"]
    for number in range(3, 11):
        assert f"{file}, line {number}: " in captured.err
    assert "8 unusable line(s)" in captured.err


def test_lenient_reading_lists_its_repairs(tmp_path: Path, capsys: Captured):
    file = tmp_path / "plan.txt"
    file.write_text(f"```json\n{GOOD}\n```")
    assert main(["check", "--catalog", CATALOG, "--plan", str(file)]) == 1
    capsys.readouterr()
    assert main(["check", "--catalog", CATALOG, "--plan", str(file), "--lenient"]) == 0
    (row,) = rows_of(capsys)
    assert row["repairs"]
    assert row["plan"] == json.loads(GOOD)


def test_unusable_input_of_check_is_one_line_and_2(tmp_path: Path, capsys: Captured):
    plan = tmp_path / "plan.json"
    plan.write_bytes(b"\xff")
    broken = tmp_path / "catalog.json"
    broken.write_text('{"version":1,"name":"x","workers":[],"color":1}')
    assert "absent.json' cannot be read" in refusal(capsys, "check", "--catalog", CATALOG, "--plan", "absent.json")
    assert "absent.json' cannot be read" in refusal(capsys, "check", "--catalog", "absent.json", "--plan", str(plan))
    assert "is not UTF-8" in refusal(capsys, "check", "--catalog", CATALOG, "--plan", str(plan))
    assert "color" in refusal(capsys, "check", "--catalog", str(broken), "--plan", str(plan))


def test_text_that_no_terminal_can_show_is_printed_as_json(tmp_path: Path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"id":"\\ud800","text":"[{\\"type\\":\\"\\\\ud800\\",\\"args\\":{}}]"}\n')
    arguments = ("check", "--catalog", CATALOG, "--plan", str(file), "--jsonl")
    process = plansmith(*arguments, stdout=subprocess.PIPE, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    out, err = process.communicate()
    assert (process.returncode, err) == (1, "")
    assert json.loads(out)["id"] == "\ud800"


# plansmith catalog


def test_a_catalog_is_shown_linted_and_turned_into_a_grammar(capsys: Captured):
    assert main(["catalog", "show", CATALOG]) == 0
    shown = capsys.readouterr().out
    assert "demo: 6 workers, hash " in shown
    assert "fin_get_quote(symbol: str" in shown
    assert main(["catalog", "show", CATALOG, "--prompt"]) == 0
    assert capsys.readouterr().out.startswith("Write the plan")
    assert main(["catalog", "grammar", CATALOG, "--max-steps", "2"]) == 0
    assert json.loads(capsys.readouterr().out)["type"] == "array"
    assert main(["catalog", "lint", CATALOG]) == 0
    assert "[no_returns]" in capsys.readouterr().out
    assert main(["catalog", "lint", CATALOG, "--strict"]) == 1


def test_a_catalog_is_imported_and_what_was_lost_is_said(tmp_path: Path, capsys: Captured):
    source, out = tmp_path / "tools.json", tmp_path / "catalog.json"
    function = {
        "name": "ping",
        "description": "Ping.",
        "parameters": {"type": "object", "properties": {}},
        "strict": True,
    }
    source.write_text(json.dumps([{"type": "function", "function": function}]))
    assert main(["catalog", "import", str(source), "--name", "net", "--out", str(out)]) == 0
    assert "note: worker 'ping': 'strict' is dropped" in capsys.readouterr().err
    assert json.loads(out.read_text())["name"] == "net"
    assert main(["catalog", "show", str(out)]) == 0


def test_a_catalog_that_cannot_be_imported_is_one_message(tmp_path: Path, capsys: Captured):
    source = tmp_path / "numbers.json"
    source.write_text("[1, 2]")
    assert "no known form of catalog" in refusal(capsys, "catalog", "import", str(source))
    assert "cannot be read" in refusal(capsys, "catalog", "import", "absent.json")


# plansmith score, doctor


def test_score_prints_the_metrics_of_two_files(tmp_path: Path, capsys: Captured):
    right, mine = tmp_path / "right.jsonl", tmp_path / "mine.jsonl"
    right.write_text(f'{{"id":"a","plan":{GOOD}}}\n{{"id":"b","plan":[]}}\n')
    mine.write_text(f'{{"id":"a","plan":{GOOD}}}\n{{"id":"c","text":"[]"}}\n')
    arguments = ["score", "--catalog", CATALOG, "--reference", str(right), "--candidate", str(mine)]
    assert main(arguments) == 0
    (score,) = rows_of(capsys)
    assert (score["items"], score["only_in_reference"], score["only_in_candidate"]) == (2, 1, 1)
    assert set(score["metrics"]["exact"]) == {"value", "hits", "scored", "unscored", "low", "high"}
    assert score["metrics"]["exact"]["hits"] == 1


def test_doctor_looks_for_something_of_every_extra():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(project["optional-dependencies"]) == set(PACKAGES.values()) - {""}


def test_doctor_says_what_is_there_and_ends_with_0(tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PLANSMITH_CACHE", str(tmp_path))
    assert main(["doctor", "--json"]) == 0
    found = {item["subject"]: item["found"] for item in json.loads(capsys.readouterr().out)}
    assert found["plansmith"] == __version__
    assert {"python", "cores", "memory", "accelerator", "disk for runs", "torch"} <= found.keys()
    assert "none converted yet" in found["base model"]


# configs and runs


def smoke(tmp_path: Path, *more: str) -> list[str]:
    return ["--config", str(ROOT / "configs" / "smoke.yaml"), "--out", str(tmp_path), *more]


def test_a_bad_config_is_one_message_and_2(tmp_path: Path, capsys: Captured):
    config = tmp_path / "bad.yaml"
    config.write_text("name: x\ndata:\n  source: {kind: script, path: q.py}\ntraning:\n  steps: 3\n")
    assert f"{config}, line 4: traning: unknown key; closest: 'training'" in refusal(
        capsys, "pipeline", "--config", str(config)
    )
    config.write_text("name: [\n")
    assert f"{config}, line 2: not usable YAML" in refusal(capsys, "train", "--config", str(config))
    assert "cannot be read" in refusal(capsys, "eval", "--config", str(tmp_path / "absent.yaml"))
    assert "give --config FILE" in refusal(capsys, "pipeline")
    message = refusal(capsys, "data", "build", *smoke(tmp_path), "--training.stepz", "3")
    assert "unknown setting '--training.stepz'; closest: 'training.steps'" in message
    assert "--name: " in refusal(capsys, "data", "build", *smoke(tmp_path, "--name", "../up"))


def test_settings_are_listed_with_type_default_and_meaning(capsys: Captured):
    assert main(["pipeline", "--settings"]) == 0
    assert "--seed int  (default: 1)\n    Seed of every random choice" in capsys.readouterr().out


def test_commands_that_need_earlier_work_name_the_command_that_does_it(tmp_path: Path, capsys: Captured):
    assert "Run: plansmith data build" in refusal(capsys, "train", *smoke(tmp_path))
    assert "Run: plansmith train" in refusal(capsys, "plan", "hello", *smoke(tmp_path))
    assert "is no run" in refusal(capsys, "plan", "hello", "--run", str(tmp_path))
    assert "give a query" in refusal(capsys, "plan", *smoke(tmp_path))


def test_data_is_built_counted_and_shown(tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    assert main(["data", "build", *smoke(tmp_path)]) == 0
    assert "dropped" not in capsys.readouterr().out
    assert main(["data", "stats", *smoke(tmp_path)]) == 0
    assert "test handwritten" in capsys.readouterr().out
    assert main(["data", "show", *smoke(tmp_path), "--part", "handwritten", "--limit", "2"]) == 0
    assert "2 of 60 rows" in capsys.readouterr().out
    assert "parts are train, val, handwritten, seen, unseen" in refusal(
        capsys, "data", "show", *smoke(tmp_path), "--part", "nope"
    )


def test_a_run_that_another_process_writes_is_refused(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(ROOT)
    with RunDirectory(tmp_path / "smoke").locked():
        assert "another plansmith process is writing" in refusal(capsys, "data", "build", *smoke(tmp_path))
    assert main(["data", "build", *smoke(tmp_path)]) == 0


def test_a_file_where_the_run_should_be_is_one_message(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(ROOT)
    (tmp_path / "smoke").write_text("in the way")
    assert "a file is in the way" in refusal(capsys, "data", "build", *smoke(tmp_path))


# what goes wrong while it runs


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_no_space_left_is_one_message_and_2():
    with Path("/dev/full").open("w") as full:
        process = plansmith("catalog", "grammar", CATALOG, stdout=full)
        _, err = process.communicate()
    assert process.returncode == 2
    assert err == (
        "plansmith: no space left on the disk. Earlier output is kept; free some space and run the command again.\n"
    )


def test_a_reader_that_stops_early_is_no_error(tmp_path: Path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"id":"a","plan":[]}\n' * 5000)
    arguments = ("check", "--catalog", CATALOG, "--plan", str(file), "--jsonl")
    process = plansmith(*arguments, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    assert (process.stderr.read(), process.wait()) == ("", 141)
    process.stderr.close()


def test_ctrl_c_ends_with_130_and_says_how_to_go_on():
    process = plansmith(
        *("check", "--catalog", CATALOG, "--plan", "-"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    )
    waiting = Path(f"/proc/{process.pid}/wchan")
    for _ in range(200):  # until it waits for its input
        time.sleep(0.05)
        if not waiting.exists() or "pipe" in waiting.read_text():
            break
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130
    assert err.count("\n") == 1
    assert "run the same command again" in err
