"""The contract: plans, catalogs, checks, grammar and prompt. Everything else agrees on what is here; no torch."""

from plansmith.contract.catalog import Catalog, Effect, Worker
from plansmith.contract.check import CheckResult, check_plan
from plansmith.contract.endpoint import Draft, Executor, Planner
from plansmith.contract.errors import (
    CatalogError,
    CatalogMismatchError,
    InputError,
    MissingExtraError,
    PlansmithError,
    ResolutionError,
    ServiceError,
)
from plansmith.contract.findings import Fault, Finding, Severity
from plansmith.contract.grammar import plan_schema
from plansmith.contract.plan import Plan, Step, canonical_json, references, resolve
from plansmith.contract.prompt import Prompt, encode_prompt, encode_target, render

__all__ = [
    "Catalog",
    "CatalogError",
    "CatalogMismatchError",
    "CheckResult",
    "Draft",
    "Effect",
    "Executor",
    "Fault",
    "Finding",
    "InputError",
    "MissingExtraError",
    "Plan",
    "Planner",
    "PlansmithError",
    "Prompt",
    "ResolutionError",
    "ServiceError",
    "Severity",
    "Step",
    "Worker",
    "canonical_json",
    "check_plan",
    "encode_prompt",
    "encode_target",
    "plan_schema",
    "references",
    "render",
    "resolve",
]
