"""The gateway over real HTTP: plans, runs, keys, limits, deadlines, callers who go away, errors, counts."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from plansmith.contract.errors import ServiceError
from plansmith.serving.gateway.config import GatewayConfig
from tests.serving.gateway_parts import (
    INVALID,
    OSLO,
    REGISTRY,
    Scripted,
    hanging,
    key,
    parts,
    says,
    served,
    until,
)


def test_a_query_becomes_a_plan_with_what_it_cost():
    with served(parts(says(OSLO))) as gateway:
        response = gateway.post("/v1/plans", {"query": "Weather in Oslo?"}, x_request_id="mine-1")
    assert response.status_code == 200
    found = response.json()
    assert (found["valid"], found["plan"], found["rung"]) == (True, OSLO, "planner")
    assert (found["prompt_tokens"], found["completion_tokens"]) == (10, 5)
    assert found["catalog"] == REGISTRY.catalog.hash
    assert [one["outcome"] for one in found["rungs"]] == ["valid"]
    assert (found["request_id"], response.headers["x-request-id"]) == ("mine-1", "mine-1")
    assert response.headers["x-content-type-options"] == "nosniff"


def test_an_empty_plan_is_a_valid_one():
    with served(parts(says([]))) as gateway:
        found = gateway.post("/v1/plans", {"query": "Sing."}).json()
    assert (found["valid"], found["plan"]) == (True, [])


def test_a_plan_that_is_not_valid_is_asked_for_again_with_the_findings_and_the_names():
    planner = says(INVALID, OSLO)
    with served(parts(planner)) as gateway:
        found = gateway.post("/v1/plans", {"query": "Weather?"}).json()
        counts = gateway.metrics()
    assert (found["valid"], found["rung"]) == (True, "reask")
    assert [(one["rung"], one["outcome"]) for one in found["rungs"]] == [("planner", "invalid"), ("reask", "valid")]
    assert planner.asked[0] == "Weather?"
    assert planner.asked[1].startswith("Weather?\n\nYour last plan was not valid:\n- ")
    assert planner.asked[1].endswith("Workers: weather_get")
    assert (found["prompt_tokens"], counts['plansmith_tokens_total{kind="prompt"}']) == (20, 20)
    assert counts['plansmith_attempts_total{outcome="invalid",rung="planner"}'] == 1
    assert counts['plansmith_plans_total{rung="reask"}'] == 1


def test_the_teacher_is_asked_next_and_nobody_invents_a_plan():
    with served(parts(says(INVALID), teacher=says(OSLO))) as gateway:
        found = gateway.post("/v1/plans", {"query": "Weather?"}).json()
    assert (found["rung"], len(found["rungs"])) == ("teacher", 3)
    with served(parts(says("no json"), teacher=says(INVALID))) as gateway:
        found = gateway.post("/v1/plans", {"query": "Weather?"}).json()
        counts = gateway.metrics()
    assert (found["valid"], found["plan"], found["rung"]) == (False, None, None)
    assert [one["outcome"] for one in found["rungs"]] == ["invalid"] * 3
    assert found["findings"]
    assert counts['plansmith_plans_total{rung="none"}'] == 1
    assert counts['plansmith_findings_total{fault="not_json"}'] == 2


def test_a_planner_that_is_gone_is_not_asked_again_but_the_teacher_is():
    gone = says(ServiceError("the endpoint gave no answer."))
    with served(parts(gone, teacher=says(OSLO))) as gateway:
        found = gateway.post("/v1/plans", {"query": "Weather?"}).json()
    assert [(one["rung"], one["outcome"]) for one in found["rungs"]] == [("planner", "failed"), ("teacher", "valid")]
    with served(parts(gone)) as gateway:
        response = gateway.post("/v1/plans", {"query": "Weather?"})
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "planner_unavailable"
    assert "gave no answer" in response.json()["error"]["message"]


def test_a_planner_that_breaks_is_an_internal_error_without_its_words(caplog: pytest.LogCaptureFixture):
    with served(parts(says(RuntimeError("canary-word")))) as gateway:
        response = gateway.post("/v1/plans", {"query": "Weather?"})
    assert (response.status_code, response.json()["error"]["code"]) == (500, "internal")
    assert "canary-word" not in response.text
    assert response.json()["error"]["request_id"] in caplog.text


def test_a_planner_that_hangs_ends_with_the_deadline():
    planner = hanging()
    with served(parts(planner)) as gateway:
        response = gateway.post("/v1/plans", {"query": "Weather?", "deadline_s": 0.2})
        until(lambda: planner.cancelled)
    assert (response.status_code, response.json()["error"]["code"]) == (504, "deadline")
    assert response.json()["error"]["rungs"][0]["outcome"] == "late"


@pytest.mark.parametrize("path", ["/v1/plans", "/v1/runs"])
def test_a_caller_who_goes_away_while_the_planner_works_cancels_it(path: str):
    planner = hanging()
    with served(parts(planner)) as gateway:
        with socket.create_connection(("127.0.0.1", int(gateway.url.rpartition(":")[2]))) as connection:
            body = b'{"query": "Weather?"}'
            head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            head += f"Content-Length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + body)
            until(lambda: planner.asked)
        until(lambda: planner.cancelled == 1)
        until(lambda: gateway.metrics()["plansmith_under_way"] == 0)
        assert gateway.metrics()["plansmith_clients_gone_total"] == 1


def test_many_callers_get_a_plan_or_429_and_nothing_else():
    gate = threading.Event()

    async def answer(query: str) -> Any:
        await asyncio.to_thread(gate.wait, 20)
        return OSLO

    planner = Scripted(answer)
    limits = {"concurrency": 4, "queue_size": 8}
    with served(parts(planner), {"limits": limits}) as gateway, ThreadPoolExecutor(64) as pool:
        asked = [pool.submit(gateway.post, "/v1/plans", {"query": "Weather?"}) for _ in range(64)]
        until(lambda: sum(one.done() for one in asked) == 64 - 12)
        counts = gateway.metrics()
        assert (counts["plansmith_under_way"], counts["plansmith_queue"]) == (4, 8)
        gate.set()
        responses = [one.result() for one in asked]
        assert gateway.metrics()["plansmith_under_way"] == 0
    statuses = [one.status_code for one in responses]
    assert (statuses.count(200), statuses.count(429), len(planner.asked)) == (12, 52, 12)
    refused = next(one for one in responses if one.status_code == 429)
    assert refused.json()["error"]["code"] == "queue_full"
    assert int(refused.headers["retry-after"]) >= 1


def test_the_wait_in_the_queue_counts_to_the_deadline():
    with served(parts(hanging()), {"limits": {"concurrency": 1}}) as gateway, ThreadPoolExecutor(2) as pool:
        first = pool.submit(gateway.post, "/v1/plans", {"query": "Weather?", "deadline_s": 1})
        until(lambda: gateway.gateway.service.places.under_way == 1)
        second = gateway.post("/v1/plans", {"query": "Weather?", "deadline_s": 0.2})
        assert second.status_code == 504
        assert "waited for its turn" in second.json()["error"]["message"]
        assert first.result().status_code == 504
        until(lambda: gateway.gateway.service.places.under_way == 0)


def test_a_rate_is_a_keys_own():
    (alice, one), (bob, two) = key("alice"), key("bob")
    with served(parts(says([])), {"keys": [one, two], "limits": {"rate_per_minute": 2}}) as gateway:

        def asks(who):
            return gateway.post("/v1/plans", {"query": "x"}, authorization=f"Bearer {who}")

        assert [asks(alice).status_code for _ in range(3)] == [200, 200, 429]
        late = asks(alice)
        assert (late.json()["error"]["code"], 1 <= int(late.headers["retry-after"]) <= 31) == ("rate_limited", True)
        assert asks(bob).status_code == 200


OPEN = {"/healthz", "/readyz", "/", "/page.js", "/page.css"}


def test_without_a_key_no_route_answers_but_those_of_state_and_the_page(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    alice, one = key("alice")
    with served(parts(says([])), {"keys": [one]}) as gateway:
        paths = [route.path.replace("{run_id}", "alice-1") for route in gateway.gateway.api.routes]
        assert len(paths) >= 12
        for path in [*paths, "/v1/tokenize", "/invocations", "/v1/load_lora_adapter", "/healthz/"]:
            for method in ("GET", "POST"):
                for header in ({}, {"authorization": "Bearer psk-wrong"}, {"authorization": alice}):
                    response = gateway.client.request(method, path, headers=header)
                    expected = path not in OPEN
                    assert (response.status_code == 401) is expected, (method, path, response.status_code)
        good = {"authorization": f"Bearer {alice}"}
        assert gateway.client.get("/metrics", headers=good).status_code == 200
        assert gateway.client.get("/v1/catalog", headers=good).json()["hash"] == REGISTRY.catalog.hash
        for path in ("/invocations", "/v1/load_lora_adapter", "/tokenize", "/v1/completions"):
            assert gateway.client.post(path, headers=good, json={}).status_code == 404
    assert "psk-" not in caplog.text
    assert "by alice" in caplog.text


def test_metrics_may_be_open():
    _, one = key("alice")
    with served(parts(says([])), {"keys": [one], "open_metrics": True}) as gateway:
        assert gateway.client.get("/metrics").status_code == 200
        assert gateway.client.get("/v1/models").status_code == 401


def test_without_keys_only_a_loopback_address_is_listened_on():
    with pytest.raises(ValidationError, match="there are no keys"):
        GatewayConfig(host="0.0.0.0")
    _, one = key("alice")
    assert GatewayConfig.model_validate({"host": "0.0.0.0", "keys": [one]}).host == "0.0.0.0"
    with pytest.raises(ValidationError, match="one name"):
        GatewayConfig.model_validate({"keys": [one, one]})


@pytest.mark.parametrize(
    ("body", "status", "says_"),
    [
        (b"", 400, "body"),
        (b"{", 400, "JSON"),
        (b"[]", 400, "object"),
        (b'{"query": ""}', 400, "query"),
        (b'{"query": 7}', 400, "query"),
        (b'{"query": "x", "frob": 1}', 400, "frob"),
        (b'{"query": "x", "deadline_s": -1}', 400, "deadline_s"),
        (b'{"query": "x", "deadline_s": NaN}', 400, ""),
        (b'{"query": "\\ud800"}', 400, "unicode"),
        (b'{"query": "' + b"x" * 9000 + b'"}', 400, "9000 characters"),
        (b'{"query": "' + b"x" * 300_000 + b'"}', 413, "bytes"),
        (b"[" * 100_000, 400, ""),
        (b"\xff\xfe", 400, ""),
    ],
)
def test_a_request_that_cannot_be_used_is_one_clear_error(body: bytes, status: int, says_: str):
    with served(parts(says([]))) as gateway:
        response = gateway.client.post("/v1/plans", content=body, headers={"content-type": "application/json"})
        assert response.status_code == status, response.text
        error = response.json()["error"]
        assert {"code", "message", "request_id", "type"} <= error.keys()
        assert says_.lower() in error["message"].lower()
        chunked = gateway.client.post("/v1/plans", content=iter([body]), headers={"content-type": "application/json"})
        assert chunked.status_code == status
        assert gateway.post("/v1/plans", {"query": "still here?"}).status_code == 200


@pytest.mark.parametrize("given", ["a b", "x" * 65, "<script>", ""])
def test_a_request_id_that_is_none_is_replaced(given: str):
    with served(parts(says([]))) as gateway:
        found = gateway.post("/v1/plans", {"query": "x"}, x_request_id=given).json()["request_id"]
    assert found != given
    assert len(found) == 32


def test_readiness_means_that_a_plan_was_made():
    state = {"fail": True}

    class Planner(Scripted):
        async def plan(self, query: str, catalog: Any, *, constrained: bool = True) -> Any:
            if state["fail"]:
                raise ServiceError("nobody is there.")
            return await super().plan(query, catalog, constrained=constrained)

    planner = Planner(says([]).answer)
    with served(parts(planner), {"ready": {"every_s": 0.05}}) as gateway:
        assert gateway.client.get("/healthz").status_code == 200
        until(lambda: "nobody is there" in gateway.client.get("/readyz").json()["reason"])
        assert gateway.client.get("/readyz").status_code == 503
        assert gateway.metrics()["plansmith_ready"] == 0
        state["fail"] = False
        until(lambda: gateway.client.get("/readyz").status_code == 200)
        state["fail"] = True
        gateway.post("/v1/plans", {"query": "x"})
        assert gateway.client.get("/readyz").status_code == 503


def test_the_openapi_document_names_every_route():
    with served(parts(says([]))) as gateway:
        document = gateway.client.get("/openapi.json").json()
    assert set(document["paths"]) == {
        *("/healthz", "/readyz", "/metrics", "/v1/catalog", "/v1/plans", "/v1/models", "/v1/chat/completions"),
        *("/v1/runs", "/v1/runs/{run_id}", "/v1/runs/{run_id}/resume"),
    }


def test_a_slow_body_is_given_up(tmp_path: Path):
    with served(parts(says([])), {"limits": {"deadline_s": 0.3}}) as gateway:
        port = int(gateway.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(b"POST /v1/plans HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
            connection.settimeout(10)
            assert b" 504 " in connection.recv(4096)


def test_a_gateway_that_stops_takes_nothing_new_on_and_says_so():
    with served(parts(says(OSLO))) as gateway:
        until(lambda: gateway.client.get("/readyz").status_code == 200)
        gateway.gateway.service.stopping = True
        for path, body in (("/v1/plans", {"query": "x"}), ("/v1/runs", {"plan": OSLO})):
            response = gateway.post(path, body)
            assert (response.status_code, response.json()["error"]["code"]) == (503, "stopping")
            assert response.headers["retry-after"] == "5"
        assert gateway.client.get("/readyz").json() == {"ready": False, "reason": "the gateway is being stopped"}
