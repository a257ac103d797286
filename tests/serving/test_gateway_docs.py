"""docs/serving.md: its config is one, its table has every route, its commands are known."""

from __future__ import annotations

import re
from pathlib import Path

from plansmith.contract.settings import load_settings
from plansmith.serve_config import ServeConfig
from plansmith.serving.gateway.app import make_app
from tests.serving.gateway_parts import parts, says

PAGE = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")


def test_the_config_of_the_page_is_one(tmp_path: Path):
    (block,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "serve.yaml").write_text(block, encoding="utf-8")
    config = load_settings(ServeConfig, tmp_path / "serve.yaml")
    assert config.planner.kind == "vllm"
    assert config.agent is not None


def test_the_page_names_every_route_of_the_gateway():
    told = make_app(parts(says([]))).api.openapi()["paths"]
    for path in told:
        assert path.replace("{run_id}", "{id}") in PAGE, path
