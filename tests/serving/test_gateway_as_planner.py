"""A gateway asked as a planner by our own client: what evaluation does with a deployed endpoint."""

from __future__ import annotations

import asyncio
import json

import pytest
from pydantic import ValidationError

from plansmith.contract.catalog import Catalog
from plansmith.contract.endpoint import Draft
from plansmith.contract.errors import InputError
from plansmith.serving.config import EndpointConfig, Route
from plansmith.serving.openai_errors import EndpointRefusedError
from plansmith.serving.openai_planner import OpenAIPlanner
from plansmith.serving.openai_reply import UnusableReplyError, read_reply
from plansmith.serving.openai_request import Asked
from tests.serving.gateway_parts import INVALID, OSLO, REGISTRY, Scripted, parts, says, served


def ask(url: str, catalog: Catalog = REGISTRY.catalog, **settings: object) -> tuple[Draft, dict[str, int]]:
    config = EndpointConfig(url=f"{url}/v1", model="planner", route=Route.PLANS, retries=1, backoff_seconds=0.01)

    async def once() -> tuple[Draft, dict[str, int]]:
        async with OpenAIPlanner(config) as planner:
            await planner.require_constraint()
            return await planner.plan("Weather in Oslo?", catalog, **settings), dict(planner.counts)  # type: ignore[arg-type]

    return asyncio.run(once())


def test_the_plan_comes_back_checked_with_the_gateways_own_counts():
    planner = says(OSLO)
    with served(parts(planner)) as gateway:
        draft, counts = ask(gateway.url)
    assert draft.check.valid
    assert draft.check.plan is not None
    assert draft.text == '[{"type":"weather_get","args":{"city":"Oslo"}}]'
    assert (draft.prompt_tokens, draft.completion_tokens) == (10, 5)
    assert counts == {"sent": 1, "answered": 1}
    assert planner.asked == ["Weather in Oslo?"]


def test_no_valid_plan_is_an_answer_that_counts_as_a_miss():
    with served(parts(says(INVALID))) as gateway:
        draft, counts = ask(gateway.url)
    assert (draft.text, draft.error, draft.check.valid) == ("", None, False)
    assert counts["no_valid_plan"] == 1


def test_another_catalog_is_refused_with_both_hashes():
    other = Catalog("other", [])
    with served(parts(says(OSLO))) as gateway, pytest.raises(EndpointRefusedError) as caught:
        ask(gateway.url, other)
    assert REGISTRY.catalog.hash[:12] in str(caught.value)
    assert other.hash[:12] in str(caught.value)


def test_sampling_and_fields_that_a_gateway_would_not_honour_are_refused():
    planner: Scripted = says(OSLO)
    with served(parts(planner)) as gateway, pytest.raises(InputError, match="decodes greedily"):
        ask(gateway.url, temperature=0.7)
    assert planner.asked == []
    for name, value in {"temperature": 0.5, "top_logprobs": 3, "stop": ("x",), "seed": 1, "top_p": 0.5}.items():
        with pytest.raises(ValidationError, match=name):
            EndpointConfig(url="http://localhost:1/v1", model="m", route=Route.PLANS, **{name: value})  # type: ignore[arg-type]


def test_something_else_than_a_gateway_is_no_answer():
    asked = Asked({"query": "x"}, 1)
    for body in ({"choices": []}, {"plan": "[]", "catalog": "a"}, {"plan": []}, [], {"plan": {}, "catalog": 1}):
        with pytest.raises(UnusableReplyError):
            read_reply(json.dumps(body).encode(), asked, Route.PLANS)
