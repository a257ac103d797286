"""The planner over HTTP, against scripted servers that misbehave in one way each."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plansmith.contract.catalog import Catalog, Worker
from plansmith.contract.endpoint import Draft, Planner
from plansmith.contract.errors import InputError, ServiceError
from plansmith.contract.findings import Fault
from plansmith.contract.grammar import plan_schema
from plansmith.contract.prompt import render
from plansmith.contract.records import FinishReason
from plansmith.serving.config import Constraint, EndpointConfig, OtherModel, Route
from plansmith.serving.openai_errors import EndpointRefusedError, retry_after
from plansmith.serving.openai_planner import OpenAIPlanner
from plansmith.serving.openai_reply import Event, UnusableReplyError, read_reply
from plansmith.serving.openai_request import Asked as Sent
from tests.serving import openai_server as scripted
from tests.serving.openai_server import Asked, Behaviour, OpenAIServer, Reply, completion, failure

CATALOG = Catalog(
    "small",
    [
        Worker(name="quote", args={"type": "object", "properties": {"symbol": {"type": "string"}}}),
        Worker(name="now", args={"type": "object", "properties": {}}),
    ],
)
PLAN = '[{"type":"now","args":{}}]'
KEY = "sk-canary-0123456789"


def make(server: OpenAIServer, *, environ: dict[str, str] | None = None, **settings: Any) -> OpenAIPlanner:
    fast: dict[str, Any] = {"retries": 2, "backoff_seconds": 0.01, "timeout_seconds": 5.0}
    config = EndpointConfig(url=server.url, model="teacher", **(fast | settings))
    return OpenAIPlanner(config, environ=environ or {})


async def _plan(planner: OpenAIPlanner, queries: Sequence[str], **options: Any) -> list[Draft]:
    try:
        return await asyncio.gather(*(planner.plan(query, CATALOG, **options) for query in queries))
    finally:
        await planner.release()


def plan(planner: OpenAIPlanner, query: str = "what time is it", **options: Any) -> Draft:
    return asyncio.run(_plan(planner, [query], **options))[0]


def odd(planner: OpenAIPlanner) -> dict[str, int]:
    """What was counted beyond requests and answers."""
    return {name: count for name, count in planner.counts.items() if name not in (Event.SENT, Event.ANSWERED)}


def test_a_good_answer_is_a_checked_draft_with_the_endpoints_token_counts():
    with OpenAIServer(scripted.answers(PLAN, delay_s=0.05)) as server:
        planner: OpenAIPlanner = make(server)
        as_protocol: Planner = planner
        draft = plan(planner)
    assert as_protocol is planner
    assert (draft.text, draft.check.valid, draft.finish_reason) == (PLAN, True, FinishReason.STOP)
    assert (draft.prompt_tokens, draft.completion_tokens) == (100, len(PLAN) // 4 + 1)
    assert 0.05 <= draft.seconds < 2
    assert planner.counts == {"sent": 1, "answered": 1}
    assert planner.models == {"teacher": 1}


def test_the_chat_route_sends_instruction_and_workers_as_system_and_the_query_as_user():
    with OpenAIServer(scripted.answers("[]")) as server:
        plan(make(server, max_tokens=77, stop=("\n\n",), top_p=0.9, seed=5), "what | time", constrained=False)
    (asked,) = server.requests
    prompt = render("what | time", CATALOG)
    assert asked.path == "/v1/chat/completions"
    assert asked.body == {
        "model": "teacher",
        "messages": [
            {"role": "system", "content": prompt.prefix.strip()},
            {"role": "user", "content": "Query: what | time\nPlan:"},
        ],
        "max_tokens": 77,
        "temperature": 0.0,
        "top_p": 0.9,
        "seed": 5,
        "stop": ["\n\n"],
    }
    assert "authorization" not in asked.headers


def test_the_completions_route_sends_the_very_prompt_of_training_as_text_or_as_token_ids():
    class Letters:
        """A tokenizer with one token a character."""

        chat_template = None
        bos_token_id = 2
        eos_token_id = 1

        def encode(self, text: str, *, add_special_tokens: bool = False, **_: Any) -> list[int]:
            return [ord(character) + 10 for character in text]

    prompt = "".join(render("what time", CATALOG))
    with OpenAIServer(scripted.answers(PLAN)) as server:
        config = EndpointConfig(url=server.url, model="tuned", route=Route.COMPLETIONS)
        as_text = plan(OpenAIPlanner(config), "what time")
        as_ids = plan(OpenAIPlanner(config, tokenizer=Letters()), "what time")  # type: ignore[arg-type]
    assert [asked.path for asked in server.requests] == ["/v1/completions"] * 2
    assert [asked.body["prompt"] for asked in server.requests] == [
        prompt,
        [2, *(ord(character) + 10 for character in prompt)],
    ]
    assert [draft.text for draft in (as_text, as_ids)] == [PLAN, PLAN]


@pytest.mark.parametrize("route", [Route.CHAT, Route.COMPLETIONS])
@pytest.mark.parametrize(
    ("constraint", "where"),
    [
        (Constraint.RESPONSE_FORMAT, lambda body: body["response_format"]["json_schema"]["schema"]),
        (Constraint.STRUCTURED_OUTPUTS, lambda body: body["structured_outputs"]["json"]),
        (Constraint.JSON_SCHEMA, lambda body: body["json_schema"]),
        (Constraint.NONE, lambda body: None),
    ],
)
def test_the_plan_schema_goes_out_where_plans_are_constrained_and_never_in_a_field_that_is_ignored(
    route: Route, constraint: Constraint, where: Callable[[dict[str, Any]], Any]
):
    with OpenAIServer(scripted.answers("[]")) as server:
        planner = make(server, route=route, constraint=constraint, max_steps=3)
        plan(planner)
        plan(planner, constrained=False)
    held, free = (asked.body for asked in server.requests)
    assert where(held) == (plan_schema(CATALOG, max_steps=3) if constraint is not Constraint.NONE else None)
    fields = {"response_format", "structured_outputs", "json_schema"}
    assert len(held.keys() & fields) == (constraint is not Constraint.NONE)
    assert not free.keys() & fields
    assert not any(name.startswith("guided_") for name in held)


def test_temperature_and_seed_of_a_call_replace_those_of_the_config_and_none_is_not_sent():
    with OpenAIServer(scripted.answers("[]")) as server:
        plan(make(server, seed=1), temperature=0.7, seed=9)
        plan(make(server, temperature=None, extra_body={"max_tokens": None, "max_completion_tokens": 9}))
    first, second = (asked.body for asked in server.requests)
    assert (first["temperature"], first["seed"]) == (0.7, 9)
    assert not second.keys() & {"temperature", "seed", "max_tokens", "top_p", "stop", "logprobs"}
    assert second["max_completion_tokens"] == 9


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"url": "localhost:8000"}, "http://"),
        ({"url": "http://me:secret@host/v1"}, "no user name"),
        ({"url": "http://host/v1?key=secret"}, "no user name"),
        ({"extra_body": {"guided_json": {}}}, "ignored by vLLM"),
        ({"extra_body": {"model": "other"}}, "set by the planner"),
        ({"top_logprobs": 0}, "greater than or equal to 1"),
    ],
)
def test_a_config_that_cannot_be_is_refused(settings: dict[str, Any], found: str):
    with pytest.raises(ValueError, match=found):
        EndpointConfig(**({"url": "http://localhost:8000/v1", "model": "m"} | settings))


# what is tried again


@pytest.mark.parametrize(
    ("fault", "event"),
    [
        (scripted.rate_limited(), Event.RATE_LIMITED),
        (scripted.rate_limited(retry_after="0"), Event.RATE_LIMITED),
        (scripted.server_error, Event.SERVER_ERROR),
        (scripted.always(failure(503, "loading")), Event.SERVER_ERROR),
        (scripted.always(failure(408, "too slow")), Event.SERVER_ERROR),
        (scripted.half_a_body, Event.DISCONNECTED),
        (scripted.half_json, Event.UNREADABLE),
        (scripted.always(Reply(b"<html>hello</html>")), Event.UNREADABLE),
        (scripted.always(Reply(b"[" * 100_000)), Event.UNREADABLE),
        (scripted.always(Reply(b"[1, 2]")), Event.UNREADABLE),
        (scripted.always(Reply(b"")), Event.UNREADABLE),
        (scripted.always(scripted.as_json({"error": {"message": "upstream died"}})), Event.NO_CHOICES),
        (lambda asked: completion(asked, "x", choices=[]), Event.NO_CHOICES),
        (lambda asked: completion(asked, "x", choices=[{"index": 0}]), Event.NO_CHOICES),
        (lambda asked: completion(asked, "x", choices=[{"message": {"content": 7}}]), Event.NO_CHOICES),
        (
            lambda asked: completion(asked, "x", choices=[{"message": {"content": "["}, "finish_reason": "abort"}]),
            Event.NO_CHOICES,
        ),
    ],
)
def test_a_passing_fault_is_tried_again_counted_and_then_fails_with_our_words(fault: Behaviour, event: Event):
    with OpenAIServer(scripted.first(2, fault, scripted.answers(PLAN))) as server:
        planner = make(server)
        assert plan(planner).text == PLAN
    assert planner.counts == {"sent": 3, "answered": 1, "retried": 2, event: 2}
    with OpenAIServer(fault) as server:
        planner = make(server)
        with pytest.raises(ServiceError) as raised:
            plan(planner)
    assert planner.counts == {"sent": 3, "retried": 2, event: 3, "failed": 1}
    text = str(raised.value)
    assert text.startswith(f"the endpoint '{server.url}' (model 'teacher') gave no answer after 3 attempts: ")
    assert "\n" not in text
    assert len(text) < 700
    assert raised.value.exit_code == 3


def test_a_server_that_hangs_is_given_up_after_the_timeout():
    with OpenAIServer(scripted.first(1, scripted.hangs, scripted.answers(PLAN))) as server:
        planner = make(server, timeout_seconds=0.3)
        draft = plan(planner)
        assert draft.text == PLAN
        assert 0.3 <= draft.seconds < 2
        assert odd(planner) == {"timeout": 1, "retried": 1}
        server.behaviour = scripted.hangs
        with pytest.raises(ServiceError, match=r"within 0\.3 s.*timeout_seconds"):
            plan(make(server, timeout_seconds=0.3, retries=0))


def test_a_refused_connection_says_so_and_what_to_do():
    with OpenAIServer(scripted.server_error) as server:
        pass
    planner = make(server)
    with pytest.raises(ServiceError, match=r"no connection.*after|after 3 attempts: no connection.*Start the server"):
        plan(planner)
    assert planner.counts == {"sent": 3, "retried": 2, "disconnected": 3, "failed": 1}


def test_retry_after_is_waited_for_and_a_wait_that_is_too_long_is_not():
    for status in (429, 503):
        slow = scripted.always(failure(status, "slow down", retry_after="0.4"))
        with OpenAIServer(scripted.first(1, slow, scripted.answers(PLAN))) as server:
            begun = time.monotonic()
            assert plan(make(server)).text == PLAN
            assert time.monotonic() - begun >= 0.4
    with OpenAIServer(scripted.rate_limited(retry_after="3600")) as server:
        planner = make(server)
        begun = time.monotonic()
        with pytest.raises(ServiceError, match=r"asks to wait 3600 s, more than retry_after_max_seconds \(120\)"):
            plan(planner)
        assert time.monotonic() - begun < 2
    assert planner.counts == {"sent": 1, "rate_limited": 1, "failed": 1}


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": "Thu, 01 Jan 1970 00:01:40 GMT"}, 90.0),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:01 GMT"}, 0.0),
    ],
)
def test_retry_after_is_read_in_all_its_forms(headers: dict[str, str], seconds: float | None):
    assert retry_after(headers, now=10.0) == seconds


def test_waits_without_retry_after_grow_and_are_random():
    from tenacity import RetryCallState

    with OpenAIServer(scripted.server_error) as server:
        planner = make(server, backoff_seconds=1.0, backoff_max_seconds=5.0)
    waits: list[list[float]] = []
    for attempt in (1, 2, 3, 9):
        state = RetryCallState(None, None, (), {})  # type: ignore[arg-type]
        state.attempt_number = attempt
        waits.append([planner._wait(state) for _ in range(200)])
    assert [max(some) <= most for some, most in zip(waits, (1, 2, 4, 5), strict=True)] == [True] * 4
    assert [max(some) > 0.8 * most for some, most in zip(waits, (1, 2, 4, 5), strict=True)] == [True] * 4
    assert all(len(set(some)) > 100 for some in waits)


# what ends the run


@pytest.mark.parametrize(
    ("status", "advice"),
    [
        (400, "constraint"),
        (401, "api_key_env"),
        (402, "credit"),
        (403, "may not use"),
        (404, "ends? in /v1|end in /v1"),
        (405, "route"),
        (422, "extra_body"),
    ],
)
def test_a_refusal_that_holds_for_every_query_is_not_tried_again_and_names_the_remedy(status: int, advice: str):
    with OpenAIServer(scripted.always(failure(status, "no such thing"))) as server:
        planner = make(server)
        with pytest.raises(EndpointRefusedError, match=advice) as raised:
            plan(planner)
    assert f"'{server.url}' (model 'teacher') answered {status}: no such thing." in str(raised.value)
    assert len(server.requests) == 1
    assert raised.value.exit_code == 2
    assert not isinstance(raised.value, ServiceError)


def test_an_empty_account_is_not_waited_for_though_it_comes_as_429():
    with OpenAIServer(scripted.always(failure(429, "no money", code="insufficient_quota"))) as server:
        with pytest.raises(EndpointRefusedError, match="credit"):
            plan(make(server))
        assert len(server.requests) == 1


def test_a_query_too_long_for_the_model_fails_alone():
    too_long = failure(400, "This model's maximum context length is 2048 tokens", code="context_length_exceeded")
    with OpenAIServer(lambda asked: too_long if "long" in asked.query else completion(asked, PLAN)) as server:
        planner = make(server)
        long, short = asyncio.run(_plan(planner, ["a long one", "a short one"]))
    assert short.text == PLAN
    assert (long.text, long.finish_reason, long.check.valid) == ("", FinishReason.ERROR, False)
    assert long.error is not None
    assert "context length is 2048" in long.error
    assert odd(planner) == {"too_long": 1}


def test_a_bad_request_after_good_ones_of_the_same_form_is_about_its_query():
    with OpenAIServer(
        lambda asked: failure(400, "I will not") if "bad" in asked.query else completion(asked, PLAN)
    ) as server:
        planner = make(server)
        with pytest.raises(EndpointRefusedError):
            plan(planner, "bad")
        assert plan(planner, "good").text == PLAN
        draft = plan(planner, "bad")
        assert draft.error is not None
        assert "I will not" in draft.error
        with pytest.raises(EndpointRefusedError):
            plan(planner, "bad", constrained=False)
    assert odd(planner) == {"query_refused": 1}


def test_the_key_comes_from_the_environment_and_is_shown_nowhere(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG)
    with OpenAIServer(scripted.answers(PLAN)) as server:
        planner = make(server, api_key_env="THE_KEY", environ={"THE_KEY": f" {KEY}\n"})
        plan(planner)
        assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
        server.behaviour = scripted.always(failure(401, f"{'x' * 280} wrong key {KEY} in {KEY}"))
        with pytest.raises(EndpointRefusedError) as refused:
            plan(planner)
        server.behaviour = scripted.always(Reply(f"no json but {KEY}".encode()))
        with pytest.raises(ServiceError) as failed:
            plan(planner)
        server.behaviour = scripted.answers(f"the key is {KEY}")
        draft = plan(planner)
    shown = [str(refused.value), str(failed.value), repr(draft), repr(planner), repr(planner.config), caplog.text]
    assert not [text for text in shown if KEY[:12] in text]
    with pytest.raises(InputError, match="'NOT_SET'"):
        make(server, api_key_env="NOT_SET")


def test_keys_in_the_environment_that_the_config_does_not_name_are_not_sent(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", f"Authorization: Bearer {KEY}")
    with OpenAIServer(scripted.answers(PLAN)) as server:
        plan(make(server))
    assert KEY not in str(server.requests[0].headers)


# what is odd, and counted


def with_choice(**changes: Any) -> Behaviour:
    choice: dict[str, Any] = {"index": 0, "finish_reason": "stop", "message": {"content": PLAN}}
    return lambda asked: completion(asked, None, choices=[choice | changes])


@pytest.mark.parametrize(
    ("behaviour", "text", "finish", "events"),
    [
        (scripted.other_model, "[]", FinishReason.STOP, {"other_model": 1}),
        (lambda a: completion(a, "[]", model="teacher-2026-01-01"), "[]", FinishReason.STOP, {}),
        (with_choice(finish_reason="length"), PLAN, FinishReason.LENGTH, {}),
        (with_choice(finish_reason=None), PLAN, FinishReason.STOP, {"no_finish_reason": 1}),
        (with_choice(message={"content": None}), "", FinishReason.STOP, {"no_content": 1}),
        (
            with_choice(message={"content": None, "refusal": "I cannot"}),
            "I cannot",
            FinishReason.STOP,
            {"refusal": 1},
        ),
        (with_choice(message={"content": [{"type": "text", "text": "["}, {"text": "]"}, 3]}), "[]", None, {}),
        (with_choice(message={"content": "a \ud800 b"}), "a \\ud800 b", FinishReason.STOP, {"bad_unicode": 1}),
        (with_choice(finish_reason="content_filter"), "", FinishReason.ERROR, {"filtered": 1}),
        (scripted.fences_and_prose, None, FinishReason.STOP, {}),
        (scripted.broken_json, None, FinishReason.STOP, {}),
    ],
)
def test_an_odd_answer_is_an_answer_and_is_counted(
    behaviour: Behaviour, text: str | None, finish: FinishReason | None, events: dict[str, int]
):
    with OpenAIServer(behaviour) as server:
        planner = make(server)
        draft = plan(planner)
    assert text is None or draft.text == text
    assert draft.finish_reason is (finish or FinishReason.STOP)
    assert odd(planner) == events
    assert (draft.error is None) == (draft.finish_reason is not FinishReason.ERROR)


def test_plans_are_checked_here_whatever_the_server_promised():
    faults: list[set[Fault]] = []
    for behaviour in (scripted.unknown_workers, scripted.fences_and_prose, scripted.broken_json, scripted.huge_plan):
        with OpenAIServer(behaviour) as server:
            draft = plan(make(server))
        faults.append({finding.fault for finding in draft.check.findings})
    assert faults == [{Fault.UNKNOWN_WORKER}, {Fault.NOT_JSON}, {Fault.NOT_JSON}, {Fault.UNKNOWN_ARG}]
    assert len(draft.text) > 102_400


@pytest.mark.parametrize(
    ("usage", "events", "counts"),
    [
        (None, {"no_usage": 1}, None),
        ({}, {"no_usage": 1}, None),
        ("many", {"no_usage": 1}, None),
        ({"prompt_tokens": "9", "completion_tokens": True}, {"no_usage": 1}, None),
        ({"prompt_tokens": 0, "completion_tokens": 0}, {"wrong_usage": 1}, None),
        ({"prompt_tokens": 9, "completion_tokens": -1}, {"no_usage": 1}, None),
        ({"prompt_tokens": 9, "completion_tokens": 100_000}, {"wrong_usage": 1}, None),
        ({"prompt_tokens": 9, "completion_tokens": 3}, {}, (9, 3)),
    ],
)
def test_token_counts_that_cannot_be_are_estimated_and_counted(
    usage: Any, events: dict[str, int], counts: tuple[int, int] | None
):
    with OpenAIServer(lambda asked: completion(asked, PLAN, usage=usage)) as server:
        planner = make(server)
        draft = plan(planner)
    assert odd(planner) == events
    assert draft.completion_tokens == (counts[1] if counts else 7)
    prompt = len("".join(render("what time is it", CATALOG)))
    assert draft.prompt_tokens in ((counts[0],) if counts else (9, -(-prompt // 4)))


def test_another_models_answer_ends_the_work_where_that_is_asked_for():
    with OpenAIServer(scripted.other_model) as server:
        planner = make(server, other_model=OtherModel.REFUSE)
        with pytest.raises(EndpointRefusedError, match="somebody-else"):
            plan(planner)
    assert planner.models == {"somebody-else": 1}


def test_log_probabilities_are_kept_on_both_routes_where_they_are_asked_for():
    top = [{"token": "[", "logprob": -0.1}, {"token": "{", "logprob": -3}]
    chat = {"content": [{"token": "[", "logprob": -0.1, "top_logprobs": top}, {"token": "]", "logprob": -0.5}]}
    plain = {"tokens": ["[", "]"], "token_logprobs": [-0.1, -0.5], "top_logprobs": [{"[": -0.1, "{": -3}, None]}
    routes = ((Route.CHAT, {"message": {"content": "[]"}}, chat), (Route.COMPLETIONS, {"text": "[]"}, plain))
    for route, said, logprobs in routes:
        choice = {"finish_reason": "stop", "logprobs": logprobs, **said}
        with OpenAIServer(lambda asked, choice=choice: completion(asked, None, choices=[choice], usage=None)) as server:
            draft = plan(make(server, route=route, top_logprobs=2))
            assert plan(make(server, route=route)).logprobs == draft.logprobs
        asked = server.requests[0].body
        assert asked["logprobs"] == (True if route is Route.CHAT else 2)
        assert draft.logprobs == (("[", -0.1, (("[", -0.1), ("{", -3.0))), ("]", -0.5, ()))
        assert draft.completion_tokens == 2, "counted from the log-probabilities, since there is no usage"
    for broken in ({}, {"content": [{"token": 1}]}, {"content": [{"token": "a", "logprob": "x"}]}, 5):
        with OpenAIServer(with_choice(logprobs=broken)) as server:
            planner = make(server, top_logprobs=2)
            assert plan(planner).logprobs is None
        assert odd(planner) == {"no_logprobs": 1}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=12,
)
bodies = st.fixed_dictionaries(
    {},
    optional={
        "choices": json_values
        | st.lists(
            st.fixed_dictionaries(
                {},
                optional={
                    "message": json_values | st.fixed_dictionaries({"content": json_values}),
                    "text": json_values,
                    "finish_reason": json_values,
                    "logprobs": json_values
                    | st.fixed_dictionaries({"content": json_values})
                    | st.fixed_dictionaries({"tokens": json_values, "token_logprobs": json_values}),
                },
            )
        ),
        "usage": json_values | st.dictionaries(st.sampled_from(["prompt_tokens", "completion_tokens"]), json_values),
        "model": json_values,
        "error": json_values,
    },
)


@given(
    st.binary(max_size=60) | (json_values | bodies).map(lambda body: json.dumps(body).encode()), st.sampled_from(Route)
)
def test_any_body_is_read_as_an_answer_or_as_none(content: bytes, route: Route):
    sent = Sent({"model": "m", "max_tokens": 9, "logprobs": 1}, 3)
    try:
        reply = read_reply(content, sent, route)
    except UnusableReplyError:
        return
    reply.text.encode()
    assert 0 <= reply.completion_tokens <= 9
    assert reply.prompt_tokens > 0


# concurrency


def test_no_more_requests_than_allowed_are_under_way_and_429_makes_them_fewer():
    def crowded(asked: Asked) -> Reply:
        too_many = server.under_way > 3
        return failure(429, "too many") if too_many else Reply(completion(asked, PLAN).content, delay_s=0.02)

    with OpenAIServer(crowded) as server:
        planner = make(server, concurrency=16, retries=20)
        drafts = asyncio.run(_plan(planner, [f"q{number}" for number in range(60)]))
    assert [draft.text for draft in drafts] == [PLAN] * 60
    assert server.most_under_way <= 16
    assert planner.counts["rate_limited"] < 60, "the limit was not learnt"
    assert planner.limiter.limit <= 8
    assert planner.limiter.under_way == 0


def test_the_planner_works_in_one_event_loop_after_the_other():
    with OpenAIServer(scripted.answers(PLAN)) as server:
        planner = make(server)
        assert [plan(planner).text for _ in range(3)] == [PLAN] * 3


def test_a_cancelled_plan_gives_its_place_back():
    async def cancel_one(planner: OpenAIPlanner) -> Draft:
        hanging = asyncio.create_task(planner.plan("hang", CATALOG))
        await asyncio.sleep(0.2)
        hanging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hanging
        try:
            return await planner.plan("good", CATALOG)
        finally:
            await planner.release()

    with OpenAIServer(lambda a: scripted.hangs(a) if a.query == "hang" else completion(a, PLAN)) as server:
        planner = make(server, concurrency=1)
        assert asyncio.run(cancel_one(planner)).text == PLAN


# the canary


def obeys(asked: Asked) -> Reply:
    """Decodes under the schema sent as `response_format`, and only there."""
    sent = asked.body.get("response_format")
    if sent is None:
        return completion(asked, '{"word":"hello"}')
    return completion(asked, json.dumps({"word": sent["json_schema"]["schema"]["properties"]["word"]["enum"][0]}))


def test_an_endpoint_that_ignores_the_schema_is_found_out():
    async def require(planner: OpenAIPlanner) -> None:
        try:
            await planner.require_constraint()
        finally:
            await planner.release()

    with OpenAIServer(obeys) as server:
        asyncio.run(require(make(server)))
        for constraint in (Constraint.STRUCTURED_OUTPUTS, Constraint.JSON_SCHEMA):
            with pytest.raises(InputError, match="does not decode under the schema"):
                asyncio.run(require(make(server, constraint=constraint)))
        words = {str(asked.body["response_format"]) for asked in server.requests[:1]}
        asyncio.run(require(make(server)))
        assert str(server.requests[-1].body["response_format"]) not in words, "the word is the same each time"
        asked_before = len(server.requests)
        asyncio.run(require(make(server, constraint=Constraint.NONE)))
        assert len(server.requests) == asked_before
