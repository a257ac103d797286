"""The examples of docs/contract.md do what the page says: plans, results, Python, and commands with their output."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from plansmith import cli
from plansmith.contract.catalog import Catalog
from plansmith.contract.check import Fault, check_plan
from plansmith.contract.plan import resolve

PAGE = Path(__file__).parents[2] / "docs" / "contract.md"
WRONG_PLAN = '[{"type":"weather_forcast","args":{"city":"Oslo"}}]'
TOOLS = {
    "tools": [
        {
            "type": "function",
            "function": {
                "name": "order_cancel",
                "description": "Cancel an order.",
                "strict": True,
                "parameters": {
                    "type": "object",
                    "properties": {"order_id": {"type": "string"}},
                    "required": ["order_id"],
                },
            },
        }
    ]
}


class Block(NamedTuple):
    """A fenced block: the words of its first line, its text, and the line where it starts."""

    words: list[str]
    text: str
    line: int


def blocks() -> list[Block]:
    text = PAGE.read_text(encoding="utf-8")
    found = re.finditer(r"^```(\w[^\n]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [Block(m[1].split(), m[2], text[: m.start()].count("\n") + 1) for m in found]


BLOCKS = blocks()


def of_kind(*words: str) -> list[Any]:
    chosen = [block for block in BLOCKS if block.words[: len(words)] == list(words)]
    return [pytest.param(block, id=f"line {block.line}") for block in chosen]


def only(*words: str) -> Any:
    (found,) = [json.loads(block.text) for block in BLOCKS if block.words == list(words)]
    return found


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    """The page's catalog, in a folder with the files that its commands name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "post.json").write_text(json.dumps(only("json", "catalog")), encoding="utf-8")
    (tmp_path / "plan.json").write_text(WRONG_PLAN, encoding="utf-8")
    (tmp_path / "tools.json").write_text(json.dumps(TOOLS), encoding="utf-8")
    return Catalog.load("post.json")


def test_every_block_is_of_a_kind_that_a_test_below_runs() -> None:
    kinds = {" ".join(block.words[: 2 if block.words[0] in ("json", "text") else 1]) for block in BLOCKS}
    json_kinds = {"json plan", "json results", "json resolved", "json catalog"}
    assert kinds == {*json_kinds, "text not_json", "python", "console"}


@pytest.mark.parametrize("block", of_kind("json", "plan"))
def test_a_plan_has_the_faults_that_its_block_names_and_no_others(block: Block, catalog: Catalog) -> None:
    result = check_plan(block.text, catalog)
    assert [finding.fault.value for finding in result.findings] == block.words[2:]
    assert result.valid == (not block.words[2:])


def test_the_page_names_every_fault() -> None:
    words = set(re.findall(r"\w+", PAGE.read_text(encoding="utf-8")))
    assert [fault.value for fault in Fault if fault.value not in words] == []


def test_the_results_resolve_to_the_arguments_that_the_page_shows() -> None:
    first = next(json.loads(block.text) for block in BLOCKS if block.words == ["json", "plan"])
    assert resolve(first[-1]["args"], only("json", "results")) == only("json", "resolved")


@pytest.mark.parametrize("block", of_kind("text", "not_json"))
def test_loose_text_is_invalid_and_can_be_repaired(block: Block, catalog: Catalog) -> None:
    assert [finding.fault.value for finding in check_plan(block.text, catalog).findings] == ["not_json"]
    repaired = check_plan(block.text, catalog, lenient=True)
    assert (repaired.valid, repaired.parsed, len(repaired.repairs) > 0) == (True, False, True)


@pytest.mark.parametrize("block", of_kind("python"))
def test_a_python_example_runs(block: Block, catalog: Catalog) -> None:
    code = compile(block.text, f"{PAGE.name}, line {block.line}", "exec")
    exec(code, {"__name__": "example"})


@pytest.mark.parametrize("block", of_kind("console"))
def test_a_command_prints_what_the_page_shows(
    block: Block, catalog: Catalog, capsys: pytest.CaptureFixture[str]
) -> None:
    command, _, expected = block.text.partition("\n")
    program, *arguments = shlex.split(command.removeprefix("$ "))
    code = cli.main(arguments)
    output = capsys.readouterr()
    assert program == "plansmith"
    assert output.out + output.err == expected
    assert code == (1 if arguments[0] == "check" else 0)


def test_the_prose_about_the_catalog_holds(catalog: Catalog) -> None:
    defaults = catalog.workers[2]
    assert (defaults.returns, defaults.idempotent, defaults.timeout_s) == (None, False, 30)
    assert f"`{WRONG_PLAN}`" in PAGE.read_text(encoding="utf-8")
