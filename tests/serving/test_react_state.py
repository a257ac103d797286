"""An agent's state: saved after every change, taken up after a kill, without secrets; and its parts by themselves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plansmith.contract.catalog import Effect
from plansmith.contract.errors import InputError
from plansmith.contract.plan import Json
from plansmith.serving.react.facts import COMPACTED, compact, fact_line
from plansmith.serving.react.loops import call_key, circling
from plansmith.serving.react.state import AgentState, End, Phase
from plansmith.serving.runs.events import StepStatus
from plansmith.serving.workers.registry import Registry
from tests.serving.openai_server import Asked, OpenAIServer, Reply
from tests.serving.react_parts import CALM, ask, asks, call, final, observations, require_sound, turns
from tests.serving.run_parts import Made, echo

ROOT = Path(__file__).resolve().parents[2]


def carry_out(url: str, folder: Path, mode: str, when: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.serving.agent_until_killed", url, str(folder / "state.json")]
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    return subprocess.run(
        [*command, str(folder / "effects"), mode, when],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
        env=environment,
    )


def one_call_then_done(asked: Asked) -> Reply:
    return asks(asked, final("ok")) if observations(asked) else asks(asked, call("work", {"n": 1}))


@pytest.mark.parametrize(
    ("mode", "when", "lines", "status"),
    [
        ("read", "before", 1, StepStatus.DONE),
        ("read", "after", 2, StepStatus.DONE),
        ("idempotent", "after", 2, StepStatus.DONE),
        ("write", "before", 0, StepStatus.OUTCOME_UNKNOWN),
        ("write", "after", 1, StepStatus.OUTCOME_UNKNOWN),
    ],
)
def test_a_run_that_was_killed_in_a_call_goes_on_and_repeats_only_what_does_no_harm(
    tmp_path: Path, mode: str, when: str, lines: int, status: StepStatus
):
    with OpenAIServer(one_call_then_done) as server:
        assert carry_out(server.url, tmp_path, mode, when).returncode == -9
        assert AgentState.load(tmp_path / "state.json").phase is Phase.ACT
        again = carry_out(server.url, tmp_path, mode, "never")
        assert again.returncode == 0, again.stderr
        asked_before = len(server.requests)
        result = json.loads(again.stdout)
        assert (result["end"], result["answer"]["text"], result["turns"]) == ("answered", "ok", 2)
        assert result["calls"][0]["outcome"]["status"] == status
        effects = (tmp_path / "effects").read_text().splitlines() if lines else []
        assert len(effects) == lines
        if mode == "idempotent":
            assert len(set(effects)) == 1, "the same key both times"
        if status is StepStatus.OUTCOME_UNKNOWN:
            assert "do not repeat" in observations(server.requests[-1])[0]
        for one in server.requests:
            require_sound(one.body["messages"])
        third = carry_out(server.url, tmp_path, mode, "never")
        assert json.loads(third.stdout)["answer"] == result["answer"]
        assert len(server.requests) == asked_before, "a run that has ended asks nobody"


def test_every_state_can_be_taken_up_and_comes_to_the_same_end():
    worker = Made("echo", echo, effect=Effect.READ)
    script = turns([call("echo", {"a": 1})], [call("echo", {"a": 2}), call("nope")], "Hm.", [final("ok")])
    states: list[AgentState] = []
    whole, requests = ask(script, Registry("c", [worker]), on_state=states.append)
    assert [state.phase for state in states] == ["reason", "act", "reason", "act", "reason", "end"]
    for state in states:
        again = AgentState.model_validate_json(state.model_dump_json())

        def rest(asked, done=state.turns):
            return script(Asked(asked.number + done, asked.path, asked.headers, asked.body))

        result, later = ask(rest, Registry("c", [worker]), work=lambda agent, again=again: agent.resume(again))
        same = {"seconds", "calls"}
        assert result.model_dump(exclude=same) == whole.model_dump(exclude=same)
        assert [(one.worker, one.args, one.outcome.result) for one in result.calls] == [
            (one.worker, one.args, one.outcome.result) for one in whole.calls
        ]
        for mine, first in zip(later, requests[state.turns :], strict=True):
            assert mine.body["messages"] == first.body["messages"]


def test_a_state_of_other_workers_or_of_no_run_is_refused(tmp_path: Path):
    states: list[AgentState] = []
    ask(turns([final("ok")]), Registry("c", [Made("echo", echo, effect=Effect.READ)]), on_state=states.append)
    with pytest.raises(InputError, match="workers that it began with"):
        ask(
            turns([final("ok")]),
            Registry("c", [Made("other", echo, effect=Effect.READ)]),
            work=lambda agent: agent.resume(states[0]),
        )
    for text in ("{}", "no json", '{"version": 2}', ""):
        (tmp_path / "state.json").write_text(text)
        with pytest.raises(InputError, match="no state of an agent's run"):
            AgentState.load(tmp_path / "state.json")
    with pytest.raises(InputError, match="cannot be read"):
        AgentState.load(tmp_path / "nothing.json")


def test_secrets_are_in_no_event_state_or_record():
    canary = "s3cr3t-canary-77"
    worker = Made("login", echo, effect=Effect.READ, secrets=["password"])
    states: list[AgentState] = []
    events: list[Any] = []
    config = CALM.model_copy(update={"show_values": True})
    secret = call("login", {"user": "ann", "password": canary})
    result, _ = ask(
        turns([secret], [final("ok")]),
        Registry("c", [worker]),
        config,
        query=f"Log in with {canary}",
        on_state=states.append,
        on_event=events.append,
    )
    assert worker.calls[0][0]["password"] == canary
    assert canary not in "".join(event.model_dump_json() for event in events)
    assert canary not in "".join(state.model_dump_json() for state in states[2:])
    assert result.calls[0].args == {"user": "ann", "password": "[redacted]"}


def test_a_worker_of_the_name_that_ends_a_run_is_refused():
    with pytest.raises(InputError, match="final_answer"):
        ask(turns([final()]), Registry("c", [Made("final_answer", echo, effect=Effect.READ)]))


@pytest.mark.parametrize(
    ("turns_", "found"),
    [
        ("a a a", True),
        ("a a", False),
        ("a b a a", False),
        ("b a a a", True),
        ("a b a b", True),
        ("x a b a b", True),
        ("a b a c", False),
        ("a b c a b c", False),
        ("ax ay az", True),
        ("ax by ac bz", True),
        ("ab cd ab ce", True),
        ("", False),
    ],
)
def test_circles_are_the_same_call_three_times_running_or_two_in_turns(turns_: str, found: bool):
    assert circling([list(turn) for turn in turns_.split()], repeat_limit=3) is found


@given(st.lists(st.integers(), unique=True, max_size=12))
def test_calls_that_all_differ_are_no_circle(numbers: list[int]):
    keys = [[call_key("w", {"n": number})] for number in numbers]
    assert not any(circling(keys[:end], repeat_limit=3) for end in range(len(keys) + 1))


@given(st.dictionaries(st.text(), st.integers() | st.text() | st.lists(st.integers())), st.randoms())
def test_the_order_of_arguments_is_no_part_of_a_call(args: dict[str, Json], random: Any):
    names = list(args)
    random.shuffle(names)
    assert call_key("w", {name: args[name] for name in names}) == call_key("w", args)
    assert call_key("v", args) != call_key("w", args)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**12), 10**12) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@given(JSON)
def test_numbers_and_short_texts_of_a_result_stay_word_for_word(value: Json):
    line = fact_line(json.dumps(value, ensure_ascii=False))
    for leaf in leaves(value):
        if not (isinstance(value, dict) and value.get("error") is True):
            assert json.dumps(leaf, ensure_ascii=False) in line


def leaves(value: Json) -> list[Json]:
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in leaves(item)]
    if isinstance(value, list):
        return [leaf for item in value for leaf in leaves(item)]
    return [value]


def test_errors_stay_whole_and_long_texts_are_counted():
    error = {"error": True, "code": "X", "message": "y" * 500, "retryable": False}
    assert json.loads(fact_line(json.dumps(error))) == error
    assert fact_line(json.dumps({"a": "word " * 50, "b": 1})) == "/b=1, (1 further values left out)"
    assert fact_line("[]") == "(an empty result)"


def test_compaction_keeps_the_last_turn_and_every_id():
    history: list[dict[str, Any]] = []
    for n in range(3):
        history.append({"role": "assistant", "content": None, "tool_calls": [call("w", {"n": n}, f"id{n}")]})
        history.append({"role": "tool", "tool_call_id": f"id{n}", "content": json.dumps({"n": n})})
    shorter = compact(history)
    assert [message.get("tool_call_id") for message in shorter.history] == [
        message.get("tool_call_id") for message in history
    ]
    assert [message["content"] for message in shorter.history if message["role"] == "tool"] == [
        COMPACTED,
        COMPACTED,
        '{"n": 2}',
    ]
    assert shorter.facts == ['w({"n": 0}): /n=0', 'w({"n": 1}): /n=1']
    assert compact(shorter.history).facts == []


def test_an_ended_state_says_why():
    states: list[AgentState] = []
    ask(turns([final("ok")]), Registry("c", [Made("echo", echo, effect=Effect.READ)]), on_state=states.append)
    assert (states[-1].phase, states[-1].end, states[-1].answer and states[-1].answer.text) == (
        Phase.END,
        End.ANSWERED,
        "ok",
    )
