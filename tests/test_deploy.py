"""examples/deploy: every file is what its own tool reads, and they agree with each other and with the gateway."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from configparser import RawConfigParser
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from plansmith.contract.settings import load_settings
from plansmith.serve_config import ServeConfig
from plansmith.serving.gateway.app import make_app
from tests.serving.gateway_parts import parts, says

FOLDER = Path(__file__).parents[1] / "examples" / "deploy"
CONFIG = load_settings(ServeConfig, FOLDER / "serve.yaml")
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))
MANIFESTS: list[dict[str, Any]] = list(yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text(encoding="utf-8")))
ROUTES = set(make_app(parts(says([]))).api.openapi()["paths"])


class Unit(RawConfigParser):
    def optionxform(self, optionstr: str) -> str:
        return optionstr


@pytest.fixture
def unit() -> Unit:
    found = Unit(strict=False)
    found.read_string((FOLDER / "plansmith-gateway.service").read_text(encoding="utf-8"))
    return found


def of_kind(kind: str, name: str) -> dict[str, Any]:
    return next(one for one in MANIFESTS if one["kind"] == kind and one["metadata"]["name"] == name)


def container(name: str) -> dict[str, Any]:
    found: dict[str, Any] = of_kind("Deployment", name)["spec"]["template"]["spec"]["containers"][0]
    return found


def test_the_config_is_one_that_listens_elsewhere_with_keys_only():
    assert CONFIG.gateway.host == "0.0.0.0"
    assert CONFIG.gateway.keys
    assert CONFIG.planner.kind == "url"
    assert CONFIG.planner.endpoint.route.value == "completions"


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda one: f"{one['kind']}-{one['metadata']['name']}")
def test_every_manifest_fits_kubernetes_schemas(manifest: dict[str, Any]):
    kubernetes_validate.validate(manifest, "1.37", strict=True)


def test_what_is_selected_is_there():
    pods = {name: of_kind("Deployment", name)["spec"]["template"]["metadata"]["labels"] for name in ("vllm", GATEWAY)}
    for one in MANIFESTS:
        if one["kind"] == "Service":
            assert one["spec"]["selector"] == pods[one["metadata"]["name"]]
            names = {port["name"] for port in container(one["metadata"]["name"])["ports"]}
            assert {port["targetPort"] for port in one["spec"]["ports"]} <= names
        if one["kind"] == "Deployment":
            assert one["spec"]["selector"]["matchLabels"] == pods[one["metadata"]["name"]]
    allowed = of_kind("NetworkPolicy", "vllm")["spec"]["ingress"][0]["from"][0]["podSelector"]["matchLabels"]
    assert allowed == pods[GATEWAY]


GATEWAY = "plansmith-gateway"


def test_probes_ask_routes_that_there_are():
    gateway = container(GATEWAY)
    assert gateway["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert gateway["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert {"/readyz", "/healthz"} <= ROUTES
    assert "/readyz" in " ".join(COMPOSE["services"]["gateway"]["healthcheck"]["test"])
    assert gateway["ports"][0]["containerPort"] == CONFIG.gateway.port
    assert of_kind("Service", "vllm")["spec"]["ports"][0]["port"] == 8000
    assert CONFIG.planner.kind == "url"
    assert CONFIG.planner.endpoint.url == "http://vllm:8000/v1"


def test_whoever_ends_the_gateway_waits_longer_than_it_needs(unit: Unit):
    grace = CONFIG.gateway.limits.grace_s
    assert int(re.sub(r"\D", "", COMPOSE["services"]["gateway"]["stop_grace_period"])) > grace
    assert int(unit["Service"]["TimeoutStopSec"]) > grace
    pod = of_kind("Deployment", GATEWAY)["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > grace


def test_both_places_start_vllm_with_the_same_flags():
    flags = COMPOSE["services"]["vllm"]["command"]
    assert flags == container("vllm")["args"]
    outputs = next(flag.partition("=")[2] for flag in flags if flag.startswith("--structured-outputs-config="))
    assert json.loads(outputs) == {"backend": "guidance", "disable_any_whitespace": True}
    assert CONFIG.planner.kind == "url"
    assert f"--served-model-name={CONFIG.planner.endpoint.model}" in flags
    assert not any("trust" in flag for flag in flags)
    assert COMPOSE["services"]["vllm"]["image"] == container("vllm")["image"]


def test_vllm_is_reached_by_the_gateway_only():
    assert "ports" not in COMPOSE["services"]["vllm"]
    assert COMPOSE["services"]["vllm"]["networks"] == ["inside"]
    assert COMPOSE["networks"]["inside"] == {"internal": True}
    assert COMPOSE["services"]["gateway"]["ports"] == [f"127.0.0.1:{CONFIG.gateway.port}:{CONFIG.gateway.port}"]


def test_paths_of_the_config_are_mounted():
    assert CONFIG.journal is not None
    assert CONFIG.planner.kind == "url"
    wanted = {str(CONFIG.journal.parent), str(CONFIG.planner.export)}
    mounted = {one["mountPath"] for one in container(GATEWAY)["volumeMounts"]}
    assert wanted <= mounted
    composed = {
        volume.split(":")[-2 if volume.endswith(":ro") else -1] for volume in COMPOSE["services"]["gateway"]["volumes"]
    }
    assert wanted <= composed


def test_the_unit_is_one_and_gives_little_away(unit: Unit, tmp_path: Path):
    service = unit["Service"]
    assert service["ExecStart"].split()[1:] == ["serve", "--config", "/etc/plansmith/serve.yaml"]
    assert (service["NoNewPrivileges"], service["ProtectSystem"]) == ("yes", "strict")
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not on this machine; the unit was read, not verified")
    text = (FOLDER / "plansmith-gateway.service").read_text(encoding="utf-8")
    (tmp_path / "plansmith-gateway.service").write_text(text.replace("/opt/plansmith/bin/plansmith", "/bin/true"))
    command = ["systemd-analyze", "verify", str(tmp_path / "plansmith-gateway.service")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    complaints = [line for line in done.stderr.splitlines() if "plansmith" in line]
    assert complaints == []


def test_compose_reads_its_file(tmp_path: Path):
    compose = ["docker", "compose"]
    if shutil.which("docker") is None or subprocess.run([*compose, "version"], capture_output=True).returncode:
        pytest.skip("docker compose is not on this machine; the file was read, not checked by it")
    command = [*compose, "-f", str(FOLDER / "compose.yaml"), "config", "--quiet"]
    environment = os.environ | {"PLANNER": str(tmp_path)}
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)
    assert found.returncode == 0, found.stderr
