"""The OpenAPI document against the gateway: schemathesis makes requests from it and holds the answers against it."""

from __future__ import annotations

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from plansmith.serving.gateway.app import make_app
from tests.serving.gateway_parts import OSLO, parts, says

pytestmark = pytest.mark.slow
GATEWAY = make_app(parts(says(OSLO)))
schema = schemathesis.openapi.from_asgi("/openapi.json", GATEWAY)
CHECKS = [not_a_server_error, content_type_conformance, response_schema_conformance, status_code_conformance]


@schema.exclude(path_regex="^/readyz$").parametrize()
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_answer_is_one_that_the_document_names(case: schemathesis.Case):
    case.call_and_validate(checks=CHECKS)
