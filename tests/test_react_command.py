"""`plansmith react`: answers, exit codes, a state that is taken up, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plansmith.cli import main
from tests.serving.openai_server import Asked, OpenAIServer, Reply
from tests.serving.react_parts import asks, call, final, observations, tool_names

EXAMPLES = Path(__file__).parent.parent / "examples"
WAREHOUSE = f"{EXAMPLES / 'warehouse' / 'workers.py'}:REGISTRY"


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PLANSMITH_WAREHOUSE", str(tmp_path / "warehouse.sqlite"))


def looks_then_answers(asked: Asked) -> Reply:
    if observations(asked):
        return asks(asked, final(f"It says {observations(asked)[-1]}"))
    return asks(asked, call("stock_level", {"sku": "A-100"}))


def react(server: OpenAIServer, *more: str, query: str = "How many bolts?") -> int:
    return main(["react", query, "--url", server.url, "--model", "m", "--workers", WAREHOUSE, *more])


def test_the_answer_goes_to_standard_output_and_the_cost_to_standard_error(capsys: pytest.CaptureFixture[str]):
    with OpenAIServer(looks_then_answers) as server:
        assert react(server) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("It says ")
    assert "1 calls, 0 that could not be made" in shown.err
    assert "complete (answered)" in shown.err
    assert "was no tool: its effect is 'write'" in shown.err


def test_json_is_the_whole_run_and_limits_stop_it(capsys: pytest.CaptureFixture[str]):
    with OpenAIServer(lambda asked: asks(asked, call("stock_level", {"sku": "A-100"}))) as server:
        assert react(server, "--json", "--max-steps", "1") == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["end"], told["status"], told["turns"]) == ("max_steps", "partial", 1)


def test_a_saved_run_is_taken_up_and_one_of_another_query_is_refused(capsys: pytest.CaptureFixture[str]):
    with OpenAIServer(looks_then_answers) as server:
        assert react(server, "--state", "agent.json") == 0
        first, asked = capsys.readouterr().out, len(server.requests)
        assert react(server, "--state", "agent.json") == 0
        assert (capsys.readouterr().out, len(server.requests)) == (first, asked)
        assert react(server, "--state", "agent.json", query="Another?") == 2
    assert "another query" in capsys.readouterr().err


def test_writes_are_tools_only_where_asked_for():
    with OpenAIServer(lambda asked: asks(asked, final())) as server:
        react(server)
        react(server, "--write", "--allow", "purchasing")
        first, second = (set(tool_names(one)) for one in server.requests)
    assert "stock_reorder" in second - first


@pytest.mark.parametrize(
    ("more", "says"),
    [(["--max-steps", "0"], "--max-steps"), (["--token-budget", "1"], "--token-budget"), (["--deadline-s", "0"], "0")],
)
def test_limits_that_cannot_be_are_refused(more: list[str], says: str, capsys: pytest.CaptureFixture[str]):
    with OpenAIServer(looks_then_answers) as server:
        assert react(server, *more) == 2
        assert server.requests == []
    assert says in capsys.readouterr().err
