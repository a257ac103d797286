"""Asks systems for plans of suites, and reports: the part of evaluation that a recipe's run and a set of files share.

Reads suites and system settings; writes in the run directory `eval/suites/`, `eval/runs.jsonl` (answers),
`eval/systems.json` (what each system cost), `eval/items.jsonl` (answers, scored) and `report.{json,md,html}`. Answers
are kept as long as model, engine settings, prompt and suites are the same; only what is missing is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from plansmith.contract.errors import InputError, MissingExtraError
from plansmith.contract.progress import Progress
from plansmith.contract.prompt import prompt_hash
from plansmith.contract.records import FinishReason, Run
from plansmith.contract.store import file_hash, read_rows, write_rows
from plansmith.eval.config import EndpointSystem, EvalConfig, LocalSystem, RecordedSystem, ServedSystem, System
from plansmith.fingerprint import hash_json
from plansmith.rundir import RunDirectory, State
from plansmith.serving.config import EndpointConfig, EngineConfig

if TYPE_CHECKING:
    from rich.table import Table

    from plansmith.eval.items import SystemInfo
    from plansmith.eval.results import ReportMeta
    from plansmith.eval.suites import Suite
    from plansmith.serving.openai_planner import OpenAIPlanner

RUNS = "eval/runs.jsonl"
ITEMS = "eval/items.jsonl"
SYSTEMS = "eval/systems.json"
SUITES = "eval/suites"
_PRICES = {"price_prompt", "price_completion", "price_hour"}


class Model(NamedTuple):
    """A local model, as it lies on this machine."""

    name: str
    """In words, for the report."""
    base: Path
    adapter: Path | None
    hash: str
    """Sha256 that stands for weights and tokenizer, adapter included."""


@dataclass(frozen=True)
class Export:
    """A run's exported planner, and how it is served."""

    model: Model
    settings: Mapping[str, Any]
    """What its answers depend on besides the model."""
    concurrency: int
    serve: Callable[[], AbstractContextManager[Served]]
    """Serves it as long as the context is open."""


class Served(Protocol):
    """An open endpoint, and the process behind it."""

    @property
    def endpoint(self) -> EndpointConfig: ...
    @property
    def pid(self) -> int: ...


class _Open(NamedTuple):
    """A planner that can be asked."""

    planner: Any
    server_pid: int | None = None


@dataclass(frozen=True)
class Bench:
    """What is asked of whom, and where it is written."""

    run: RunDirectory
    progress: Progress
    suites: Sequence[Suite]
    config: EvalConfig
    engine: EngineConfig
    seed: int
    models: Mapping[tuple[str, str | None], Model]
    """The local models, by the `base` and `adapter` of a system."""
    export: Export | None = None
    """What a system of kind `served` serves."""

    @property
    def path(self) -> Path:
        return self.run.path

    @property
    def items(self) -> int:
        return sum(len(suite.examples) for suite in self.suites)


def ask_systems(bench: Bench) -> None:
    """What each system answers to each item of each suite; only what is missing is asked."""
    from plansmith.eval.suites import save_suites

    if bench.export is None and (asked := [s.name for s in bench.config.systems if isinstance(s, ServedSystem)]):
        raise InputError(f"system {asked[0]!r} is a run's served export; it needs a recipe with 'export' and 'serve'.")
    if not bench.items:
        raise InputError(f"there are no items to ask in {str(bench.path)!r}, so nothing can be evaluated.")
    _require_teacher(bench)
    _drop_outdated(bench)
    save_suites(bench.path / SUITES, bench.suites)
    for _, group in groupby(bench.config.systems, key=_loaded_once):
        systems = [system for system in group if _to_ask(bench, system)]
        if not systems:
            continue
        with _planner(bench, systems[0]) as opened:
            for system in systems:
                _ask(bench, system, opened)
                bench.run.mark(_stage(system), _inputs(bench, system), done=not _missing(bench, system))


def _require_teacher(bench: Bench) -> None:
    """Refuse a teacher that nobody knows before anything is asked."""
    known = {system.name for system in bench.config.systems} | {row.system for row in _rows(bench)}
    if bench.config.teacher is not None and bench.config.teacher not in known:
        raise InputError(f"teacher {bench.config.teacher!r} is none of the systems: {', '.join(sorted(known))}.")


def _drop_outdated(bench: Bench) -> None:
    """Answers of systems that are not asked now stay in the report only where they are to the same suites."""
    asked = {system.name for system in bench.config.systems}
    stamps = bench.run.stamps()
    for name in {row.system for row in _rows(bench)} - asked:
        stamp = stamps.get(f"eval {name}")
        made_from = {} if stamp is None else stamp.inputs
        if any(made_from.get(key) != value for key, value in _suite_hashes(bench).items()):
            _drop(bench, name, ["the test items, their catalogs or the prompt changed"])


def _loaded_once(system: System) -> tuple[str, ...]:
    """Systems with the same key share one loaded planner."""
    if isinstance(system, LocalSystem):
        return (system.kind, system.base, system.adapter or "")
    return (system.kind, system.name)


def _stage(system: System) -> str:
    return f"eval {system.name}"


def _inputs(bench: Bench, system: System) -> dict[str, Any]:
    """What the answers of a system depend on."""
    found: dict[str, Any] = {
        "system": system.model_dump(mode="json", exclude=_PRICES),
        "seed": bench.seed if system.temperature else None,
        **_suite_hashes(bench),
    }
    if isinstance(system, LocalSystem):
        found["engine"] = bench.engine.model_dump(mode="json")
        found["model"] = bench.models[system.base, system.adapter].hash
    if isinstance(system, RecordedSystem):
        found["file"] = file_hash(system.path)
    if isinstance(system, ServedSystem) and bench.export is not None:
        found["engine"] = bench.engine.model_dump(mode="json")
        found["model"], found["served"] = bench.export.model.hash, dict(bench.export.settings)
    return found


def _suite_hashes(bench: Bench) -> dict[str, dict[str, str]]:
    suites = bench.suites
    return {
        "suites": {suite.name: hash_json([row.model_dump(mode="json") for row in suite.examples]) for suite in suites},
        "catalogs": {suite.name: suite.catalog.hash for suite in suites},
        "prompts": {suite.name: prompt_hash(suite.catalog) for suite in suites},
    }


def _to_ask(bench: Bench, system: System) -> bool:
    """Whether a system has something left to answer; answers that other inputs made are put aside."""
    stage, inputs = _stage(system), _inputs(bench, system)
    if bench.run.state(stage, inputs) in (State.STALE, State.NEW):
        _drop(bench, system.name, bench.run.differences(stage, inputs))
    missing = _missing(bench, system)
    bench.run.mark(stage, inputs, done=not missing)
    if not missing:
        bench.progress.note(f"{stage}: {bench.items} items are answered already (same inputs)")
    return bool(missing)


def _missing(bench: Bench, system: System) -> int:
    """How many answers are not on disk; failed requests are no answers."""
    wanted = {
        (example.id, sample) for suite in bench.suites for example in suite.examples for sample in range(system.samples)
    }
    found = {
        (row.id, row.sample)
        for row in _rows(bench)
        if row.system == system.name and row.finish_reason is not FinishReason.ERROR
    }
    return len(wanted - found)


def _rows(bench: Bench) -> list[Run]:
    runs = bench.path / RUNS
    return list(read_rows(runs, Run)) if runs.exists() else []


def _drop(bench: Bench, system: str, changes: Sequence[str]) -> None:
    """Take rows that other inputs made out of `runs.jsonl`, after a copy of the whole file was kept."""
    rows = _rows(bench)
    kept = [row for row in rows if row.system != system]
    if len(kept) == len(rows):
        return
    aside = bench.run.free_name(RUNS)
    write_rows(aside, rows)
    write_rows(bench.path / RUNS, kept)
    _forget_cost(bench, system)
    reason = f" ({'; '.join(changes)})" if changes else ""
    note = f"eval {system}: {len(rows) - len(kept)} answers were made from other inputs{reason}; kept in {aside}"
    bench.progress.note(note)


def _forget_cost(bench: Bench, system: str) -> None:
    """What earlier answers cost goes with them."""
    from plansmith.eval.measure import load_systems, save_systems

    infos = load_systems(bench.path / SYSTEMS)
    if infos.pop(system, None) is not None:
        save_systems(bench.path / SYSTEMS, infos)


@contextmanager
def _planner(bench: Bench, system: System) -> Iterator[_Open]:
    """The planner of a system, closed afterwards."""
    if isinstance(system, LocalSystem):
        from plansmith.serving.local_engine import LocalEngine

        model = bench.models[system.base, system.adapter]
        plain, varied = bench.suites[0].catalog, len(bench.suites) > 1
        with LocalEngine(
            model.base, model.adapter, config=bench.engine, variants_of=plain if varied else None
        ) as engine:
            yield _Open(engine)
    elif isinstance(system, ServedSystem):
        from plansmith.serving.openai_planner import OpenAIPlanner

        assert bench.export is not None
        with bench.export.serve() as served:
            planner = OpenAIPlanner(served.endpoint)
            yield _Open(planner, served.pid)
            _tell_counts(bench, system.name, planner.counts)
    elif isinstance(system, EndpointSystem):
        from plansmith.serving.openai_planner import OpenAIPlanner

        planner = OpenAIPlanner(system.endpoint)
        if system.constrained:
            asyncio.run(_require_constraint(planner))
        yield _Open(planner, system.server_pid)
        _tell_counts(bench, system.name, planner.counts)
    else:
        from plansmith.serving.recorded_planner import RecordedPlanner

        yield _Open(RecordedPlanner.load(system.path))


async def _require_constraint(planner: OpenAIPlanner) -> None:
    """Refuse an endpoint that takes our grammar and does not keep to it, before anything is asked."""
    try:
        await planner.require_constraint()
    finally:
        await planner.release()


def _tell_counts(bench: Bench, system: str, counts: Mapping[str, int]) -> None:
    """What the endpoint did that it should not have done."""
    told = ", ".join(f"{count} {name}" for name, count in counts.items() if count and name not in ("sent", "answered"))
    if told:
        bench.progress.note(f"{system}: {told}")


def _ask(bench: Bench, system: System, opened: _Open) -> None:
    """Ask one system every suite; what it costs is measured and kept, also where it is stopped."""
    from plansmith.eval.measure import Measurement
    from plansmith.eval.run import run_system

    planner, info = opened.planner, _info(bench, system)
    with Measurement(bench.path / SYSTEMS, info, server_pid=opened.server_pid) as meter:
        for suite in bench.suites:
            asked = planner.for_examples(suite.examples) if isinstance(system, RecordedSystem) else planner
            run_system(
                asked,
                system.name,
                suite.examples,
                suite.catalog,
                bench.path / RUNS,
                constrained=system.constrained,
                progress=bench.progress,
                config=bench.config,
                samples=system.samples,
                temperature=system.temperature or None,
                seed=bench.seed,
                meter=meter,
            )


def _info(bench: Bench, system: System) -> SystemInfo:
    """What is known of a system before it is asked."""
    from plansmith.eval.items import PlannerKind, SystemInfo
    from plansmith.eval.measure import model_bytes

    info = SystemInfo(
        system=system.name,
        kind=PlannerKind(system.kind),
        constrained=system.constrained,
        temperature=system.temperature,
        concurrency=_concurrency(bench, system),
    )
    if isinstance(system, LocalSystem | ServedSystem):
        model = _model(bench, system)
        size = model_bytes(model.base, model.adapter)
        return info.model_copy(update={"model": model.name, "model_hash": model.hash, "model_bytes": size})
    if isinstance(system, EndpointSystem):
        return info.model_copy(update={"model": system.endpoint.model})
    return info.model_copy(update={"model": system.path.name, "model_hash": file_hash(system.path)})


def _model(bench: Bench, system: LocalSystem | ServedSystem) -> Model:
    if isinstance(system, LocalSystem):
        return bench.models[system.base, system.adapter]
    assert bench.export is not None
    return bench.export.model


def _concurrency(bench: Bench, system: System) -> int:
    """Most requests under way at once."""
    if isinstance(system, LocalSystem):
        return min(bench.engine.batch_size, bench.config.batch_size)
    if isinstance(system, ServedSystem) and bench.export is not None:
        return min(bench.config.concurrency, bench.export.concurrency)
    return min(bench.config.concurrency, system.endpoint.concurrency) if isinstance(system, EndpointSystem) else 1


def write_reports(bench: Bench, meta: ReportMeta) -> Table:
    """Score all answers on disk, write `eval/items.jsonl` and the report's files; returns the terminal's table."""
    from plansmith.eval.html import require_packages, write_html
    from plansmith.eval.measure import load_systems
    from plansmith.eval.render import terminal_table
    from plansmith.eval.report import build_report, write_report
    from plansmith.eval.scoring import score_runs

    scored = score_runs(_rows(bench), bench.suites)
    write_rows(bench.path / ITEMS, scored.items)
    infos = _with_prices(load_systems(bench.path / SYSTEMS), bench.config)
    report = build_report(
        scored.items,
        bench.suites,
        meta=meta,
        systems=infos,
        teacher=bench.config.teacher,
        left_aside=scored.left_aside,
    )
    write_report(report, bench.path)
    catalogs = {suite.name: suite.catalog for suite in bench.suites}
    try:
        require_packages()
    except MissingExtraError as error:
        bench.progress.note(f"report.html is not written: {error}")
    else:
        write_html(report, scored.items, bench.path / "report.html", catalogs=catalogs, max_items=meta.page_items)
    return terminal_table(report)


def _with_prices(infos: Mapping[str, SystemInfo], config: EvalConfig) -> dict[str, SystemInfo]:
    """The prices of today's config: they are no part of what was measured."""
    prices = {system.name: system.model_dump(include=_PRICES) for system in config.systems}
    return {name: info.model_copy(update=prices.get(name, {})) for name, info in infos.items()}
