"""Run a query from plan to results: plan it, check the plan, call the workers.

The plan comes from a planner (--run, --config, --model) or from a file (--plan). The workers come from --workers; where
the planner was trained for another catalog than theirs, their code is put under the planner's entries, if it fits.
Progress goes to standard error, results to standard output; with --answer a model's answer in their place. Every run is
written to a journal: --resume ID goes on with one that was interrupted or waits for a person, without doing anything
twice.

Exit code 0: every step has a result; 1: some have none, or the plan was refused.

Examples:
  plansmith run "Do I need an umbrella in Lisbon tomorrow?" --run out/quickstart \
      --workers examples/assistant/workers.py:REGISTRY
  plansmith run --plan examples/warehouse/reorder.json --workers examples/warehouse/workers.py:REGISTRY \
      --allow purchasing --allow notes
  plansmith run --plan examples/warehouse/reorder.json --workers examples/warehouse/workers.py:REGISTRY --dry-run
  plansmith run --resume RUN-ID --workers examples/warehouse/workers.py:REGISTRY --allow purchasing --approve 2
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.commands.plan import add_planner_options, planned
from plansmith.commands.shared import settings_asked
from plansmith.contract.errors import InputError

if TYPE_CHECKING:
    from plansmith.contract.catalog import Catalog
    from plansmith.contract.plan import Json
    from plansmith.serving.runs.answer import ModelAnswerer
    from plansmith.serving.runs.config import RunConfig
    from plansmith.serving.runs.events import RunResult
    from plansmith.serving.runs.running import ApprovalRequest
    from plansmith.serving.workers.registry import Registry


def configure(parser: argparse.ArgumentParser) -> None:
    add_planner_options(parser)
    own = parser.add_argument_group("the run")
    where, several = "module:attribute or file.py:attribute", "; may be given again"
    own.add_argument("--workers", metavar="WHERE", action="append", default=[], help=where + several)
    own.add_argument(
        "--replay", metavar="ROWS.jsonl", help="in place of --workers: recorded rows {plan, results} answer"
    )
    own.add_argument("--plan", metavar="FILE", help="run this plan (- is standard input); no planner is asked")
    own.add_argument("--resume", metavar="ID", help="go on with a run of the journal")
    granted = "a permission that you grant" + several
    own.add_argument("--allow", metavar="PERMISSION", action="append", default=[], help=granted)
    for name, what in (("--approve", "agree to"), ("--deny", "refuse")):
        own.add_argument(
            name, metavar="STEP", type=int, action="append", default=[], help=f"with --resume: {what} a step"
        )
    own.add_argument("--yes", action="store_true", help="agree to every call that needs approval")
    own.add_argument(
        "--deadline", metavar="SECONDS", type=float, default=120.0, help="most time it takes (default: 120)"
    )
    kept = "where runs are kept (default: out/runs.sqlite); none: nowhere"
    own.add_argument("--journal", metavar="FILE", default="out/runs.sqlite", help=kept)
    own.add_argument("--answer", metavar="URL", help="OpenAI-compatible endpoint that turns the results into an answer")
    own.add_argument("--answer-model", metavar="NAME", help="the model's name there")
    own.add_argument("--answer-key-env", metavar="VAR", help="environment variable that holds its key")
    own.add_argument("--dry-run", action="store_true", help="show the order and what would be refused; call nothing")
    own.add_argument("--json", action="store_true", help="print the whole run as one JSON object")


def run(args: argparse.Namespace) -> int:
    if settings_asked(args):
        return 0
    _require_one_source(args)
    plan, catalog = (None, None) if args.resume else _plan(args)
    registry = _registry(args, catalog)
    if args.dry_run:
        return _dry_run(plan, registry, _config(args))
    result = asyncio.run(_carry_out(args, plan, registry))
    _print(result, whole=args.json)
    from plansmith.serving.runs.events import RunStatus

    return 0 if result.status is RunStatus.COMPLETE else 1


def _require_one_source(args: argparse.Namespace) -> None:
    given = [name for name, value in (("QUERY", args.query), ("--plan", args.plan), ("--resume", args.resume)) if value]
    if args.resume and (args.query or args.plan):
        raise InputError(f"--resume goes on with a stored plan; {given[0]} cannot be used with it.")
    if not given:
        raise InputError("give a query in quotes, --plan FILE, or --resume ID. See plansmith run --help.")
    if bool(args.workers) == bool(args.replay):
        raise InputError("say where the workers are: --workers module:attribute, or --replay ROWS.jsonl (one of both).")
    if (args.approve or args.deny) and not args.resume:
        raise InputError("--approve and --deny answer for steps of a stored run; give --resume ID with them.")
    if args.answer and not args.answer_model:
        raise InputError("--answer names an endpoint; say which model there: --answer-model NAME.")
    if args.resume and args.dry_run:
        raise InputError("--dry-run shows a plan that has not run; it cannot be used with --resume.")


def _plan(args: argparse.Namespace) -> tuple[str, Catalog | None]:
    """The plan's text, and the catalog of the planner that wrote it."""
    if not args.plan:
        draft, catalog = planned(args)
        if draft.error is not None:
            raise InputError(f"there is no plan: {draft.error}")
        return draft.text, catalog
    try:
        text = sys.stdin.read() if args.plan == "-" else Path(args.plan).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the plan {args.plan!r} cannot be read: {error}.") from error
    return text, None


def _registry(args: argparse.Namespace, catalog: Catalog | None) -> Registry:
    from plansmith.contract.catalog import Catalog

    named = Catalog.load(args.catalog) if args.catalog else None
    catalog = named or catalog
    if args.replay:
        if catalog is None:
            raise InputError("--replay needs the catalog of the recorded workers: --catalog C.json.")
        return _replayed(Path(args.replay), catalog)
    from plansmith.serving.workers.loading import load_registry

    registry = load_registry(args.workers)
    return registry if catalog is None or catalog.hash == registry.catalog.hash else registry.under(catalog)


def _replayed(path: Path, catalog: Catalog) -> Registry:
    from plansmith.contract.errors import PlansmithError
    from plansmith.contract.plan import Plan
    from plansmith.contract.replay import RecordedCall, recorded_calls
    from plansmith.serving.workers.replayed import replay_registry

    calls: list[RecordedCall] = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
                if row.get("results") is not None:
                    calls += recorded_calls(Plan.from_json(row["plan"]), row["results"])
            except (ValueError, KeyError, TypeError, AttributeError, PlansmithError) as error:
                raise InputError(f"{str(path)!r}, line {number}: no row with plan and results: {error}") from error
    if not calls:
        raise InputError(f"{str(path)!r} has no row with results.")
    return replay_registry(catalog, calls)


def _config(args: argparse.Namespace) -> RunConfig:
    from plansmith.serving.runs.config import ApprovalMode, RunConfig

    mode = ApprovalMode.GRANT if args.yes else ApprovalMode.ASK
    if args.deadline <= 0:
        raise InputError(f"--deadline is a number of seconds above 0; found {args.deadline:g}.")
    return RunConfig(deadline_s=args.deadline, permissions=frozenset(args.allow), approval=mode)


async def _carry_out(args: argparse.Namespace, plan: str | None, registry: Registry) -> RunResult:
    from plansmith.serving.runs.journal import Journal
    from plansmith.serving.runs.orchestrator import Orchestrator
    from plansmith.terminal_run import RunDisplay

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(registry)
        journal = None
        if args.journal != "none":
            Path(args.journal).parent.mkdir(parents=True, exist_ok=True)
            journal = await stack.enter_async_context(Journal(args.journal))
        with RunDisplay(quiet=args.json) as display:

            async def ask(request: ApprovalRequest) -> bool:
                return await display.ask(request.step, request.worker, json.dumps(request.args, ensure_ascii=False))

            asking = ask if sys.stdin.isatty() and not args.json else None
            answerer = _answerer(args, stack)
            orchestrator = Orchestrator(registry, _config(args), journal, approve=asking, answerer=answerer)
            if args.resume:
                said = dict.fromkeys(args.approve, True) | dict.fromkeys(args.deny, False)
                return await orchestrator.resume(args.resume, approve=said, on_event=display.show)
            return await orchestrator.run(plan, query=args.query or "", on_event=display.show)


def _answerer(args: argparse.Namespace, stack: AsyncExitStack) -> ModelAnswerer | None:
    if not args.answer:
        return None
    from plansmith.serving.config import EndpointConfig
    from plansmith.serving.openai_text import OpenAIText
    from plansmith.serving.runs.answer import ModelAnswerer

    config = EndpointConfig(url=args.answer, model=args.answer_model, api_key_env=args.answer_key_env)
    model = OpenAIText(config)
    stack.push_async_callback(model.release)
    return ModelAnswerer(model)


def _print(result: RunResult, *, whole: bool) -> None:
    if whole:
        print(json.dumps(result.model_dump(mode="json"), ensure_ascii=False))
        return
    answer = result.answer
    findings = [f"{f['severity']}: {f['fault']} at {f['path'] or 'the plan'}: {f['message']}" for f in result.findings]
    for line in [*findings, *(() if findings else result.missing)]:
        print(line, file=sys.stderr)
    if answer is not None:
        print(answer.text or f"no answer: {answer.error}")
        sure = "" if answer.confidence is None else f"confidence {answer.confidence:g}, "
        print(f"{sure}{answer.cut} results cut, {answer.completion_tokens} tokens", file=sys.stderr)
        print(f"run {result.run_id}: {result.status.value}, {result.seconds:.2f} s", file=sys.stderr)
        return
    print(json.dumps({str(step): value for step, value in result.results.items()}, ensure_ascii=False, indent=1))
    print(f"run {result.run_id}: {result.status.value}, {result.seconds:.2f} s", file=sys.stderr)
    waiting = [str(one.step) for one in result.steps if one.status.value == "awaiting_approval"]
    if waiting:
        again = f"plansmith run --resume {result.run_id} --approve {waiting[0]} --workers ..."
        print(f"waiting for your word on step {', '.join(waiting)}: {again}", file=sys.stderr)


def _dry_run(plan: Json, registry: Registry, config: RunConfig) -> int:
    """The order of execution, and what would be refused."""
    from plansmith.contract.check import check_plan
    from plansmith.serving.runs.orchestrator import Orchestrator

    checked = check_plan(plan, registry.catalog)
    for finding in checked.findings:
        print(f"{finding.severity.value}: {finding.fault.value} at {finding.path or 'the plan'}: {finding.message}")
    if checked.plan is None:
        return 1
    refusals = {one.step: one.failure for one in Orchestrator(registry, config).refusals(checked.plan)}
    for index, (step, needs) in enumerate(zip(checked.plan.steps, checked.plan.dependencies(), strict=True)):
        waits = f"after {', '.join(map(str, sorted(needs)))}" if needs else "at once"
        refused = f"; refused: {refusals[index].message}" if index in refusals else ""
        print(f"step {index}: {step.type} {_notes(registry, step.type)}, {waits}{refused}")
    return 1 if refusals else 0


def _notes(registry: Registry, name: str) -> str:
    one: Any = registry.get(name)
    notes = [one.worker.effect.value, *(["asks first"] if one.approval else []), f"{one.worker.timeout_s:g} s"]
    return f"({', '.join(notes)})"
