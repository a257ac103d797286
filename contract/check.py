"""Checker (being written; the signatures are final)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from plansmith.contract.catalog import Catalog
from plansmith.contract.plan import Json, Plan


class Severity(StrEnum):
    ERROR = "error"
    WARNING = "warning"


class Fault(StrEnum):
    UNKNOWN_WORKER = "unknown_worker"


@dataclass(frozen=True, slots=True)
class Finding:
    fault: Fault
    severity: Severity
    step: int | None
    path: str
    message: str


@dataclass(frozen=True, slots=True)
class CheckResult:
    findings: tuple[Finding, ...]
    plan: Plan | None
    repairs: tuple[str, ...] = ()

    @property
    def valid(self) -> bool:
        return not any(f.severity is Severity.ERROR for f in self.findings)


def check_plan(plan: Json, catalog: Catalog, *, lenient: bool = False, max_steps: int = 16) -> CheckResult:
    raise RuntimeError("being written")
