"""Builds the report: scored items of all systems summed up by part, with intervals, costs and comparisons.

Reads scored items (`scoring.py`), what each system cost, and the suites; writes `report.json`, `report.md` and
`report.html`. Same items and same seed give the same report. The tables are drawn in `render.py` and `html.py`.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from plansmith.contract.errors import InputError
from plansmith.contract.prompt import prompt_hash
from plansmith.contract.records import Example, FinishReason
from plansmith.contract.store import write_text
from plansmith.eval.columns import summary
from plansmith.eval.headline import Draws, headlines, plans_per_second, teacher_table
from plansmith.eval.items import ScoredItem, SystemInfo
from plansmith.eval.metrics import FirstFault
from plansmith.eval.render import markdown
from plansmith.eval.results import (
    F1S,
    MEANS,
    METRICS,
    OVERALL,
    RATES,
    SYSTEMS,
    Comparison,
    Cost,
    Failure,
    PartReport,
    Quantiles,
    Report,
    ReportMeta,
    SuiteInfo,
    SystemReport,
)
from plansmith.eval.scoring import first_samples
from plansmith.eval.stats import Difference, Metric, paired_f1, paired_mean, paired_rate, quantile
from plansmith.eval.suites import Suite, origin_id
from plansmith.eval.variants_config import VariantKind

_COMPARED = (
    ("base/free", "tuned/free"),
    ("base/grammar", "tuned/grammar"),
    ("base/free", "base/grammar"),
    ("tuned/free", "tuned/grammar"),
)
_MOST_PAIRS = 10
"""Systems that are none of the known ones are all compared with each other up to this many pairs."""
_VARIANT_METRICS = ("valid", "equivalent")


def build_report(
    items: Sequence[ScoredItem],
    suites: Sequence[Suite],
    *,
    meta: ReportMeta,
    systems: Mapping[str, SystemInfo] | None = None,
    teacher: str | None = None,
    left_aside: int = 0,
) -> Report:
    """Sum up what was scored.

    Args:
        items: scored items of all systems.
        suites: what was asked; the first is the plain one, over which systems are compared.
        meta: where the numbers come from; gives the seed of the bootstrap.
        systems: what was measured of each system.
        teacher: name of the system that the others are measured against.
        left_aside: run rows that belong to no item.

    Raises:
        InputError: no system is named like the teacher.

    """
    infos = dict(systems or {})
    by_system = {name: [item for item in items if item.system == name] for name in _in_order(items)}
    if teacher is not None and teacher not in by_system:
        raise InputError(f"there are no answers of the teacher {teacher!r}; systems: {', '.join(by_system) or 'none'}.")
    plain = _parts(suites[:1])
    draws = Draws(meta.seed, meta.resamples)
    overall = {name: [item for item in rows if item.part in plain] for name, rows in by_system.items()}
    groups = {part: (part,) for part in _parts(suites)} | {OVERALL: plain}
    return Report(
        meta=meta,
        suites=tuple(map(_suite, suites)),
        items=len(suites[0].examples),
        parts=_parts(suites),
        systems=tuple(_system(name, rows, plain, infos.get(name), meta) for name, rows in by_system.items()),
        comparisons=tuple(_comparisons(overall, teacher, meta)),
        variants=tuple(_variant_effects(by_system, suites, meta)),
        teacher=None if teacher is None else teacher_table(teacher, by_system, groups, infos, draws),
        headline=() if teacher is None else tuple(headlines(teacher, overall, infos, draws)),
        other_runs=left_aside,
    )


def write_report(report: Report, folder: str | Path) -> tuple[Path, Path]:
    """Write `report.json` and `report.md`, each replaced as a whole, and return their paths.

    Raises:
        StorageError: one of them could not be written; the earlier file is kept.

    """
    paths = Path(folder) / "report.json", Path(folder) / "report.md"
    write_text(paths[0], report.model_dump_json(indent=1) + "\n")
    write_text(paths[1], markdown(report))
    return paths


def _in_order(items: Iterable[ScoredItem]) -> list[str]:
    """The systems' names once each, known systems first."""
    unique = list(dict.fromkeys(item.system for item in items))
    return [name for name in SYSTEMS if name in unique] + [name for name in unique if name not in SYSTEMS]


def _parts(suites: Sequence[Suite]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(example.part for suite in suites for example in suite.examples))


def _suite(suite: Suite) -> SuiteInfo:
    return SuiteInfo(
        name=suite.name,
        catalog_name=suite.catalog.name,
        catalog_hash=suite.catalog.hash,
        prompt_hash=prompt_hash(suite.catalog),
        examples_hash=_examples_hash(suite.examples),
        items=len(suite.examples),
        parts=_parts([suite]),
    )


def _system(
    name: str, rows: Sequence[ScoredItem], plain: Sequence[str], info: SystemInfo | None, meta: ReportMeta
) -> SystemReport:
    by_part: dict[str, list[ScoredItem]] = {}
    for item in first_samples(rows):
        by_part.setdefault(item.part, []).append(item)
    whole = [item for part in plain for item in by_part.get(part, ())]
    parts = {part: _part(part, members, info, meta) for part, members in by_part.items()}
    wrong = [item for item in first_samples(rows) if item.fault not in (FirstFault.RIGHT, None)]
    return SystemReport(
        system=name,
        parts=parts | ({OVERALL: _part(OVERALL, whole, info, meta)} if whole else {}),
        wrong=len(wrong),
        failures=tuple(map(_failure, wrong[: meta.failures])),
        info=info,
        plans_per_second=plans_per_second(info),
    )


def _part(part: str, items: Sequence[ScoredItem], info: SystemInfo | None, meta: ReportMeta) -> PartReport:
    faults = Counter(item.fault for item in items)
    metrics = {name: _metric(name, items, meta) for name in METRICS}
    return PartReport(
        part=part,
        items=len(items),
        missing=sum(item.finish_reason is None for item in items),
        failed=sum(item.finish_reason is FinishReason.ERROR for item in items),
        cut=sum(item.finish_reason is FinishReason.LENGTH for item in items),
        metrics=metrics,
        first_faults={fault: faults[fault] for fault in FirstFault},
        cost=_cost([item for item in items if item.finish_reason is not None], info, metrics["equivalent"].hits),
    )


def _metric(name: str, items: Sequence[ScoredItem], meta: ReportMeta) -> Metric:
    return summary(name, [_value(item, name) for item in items], seed=meta.seed, resamples=meta.resamples)


def _value(item: ScoredItem, metric: str) -> Any:
    return item.counts[metric] if metric in F1S else item.outcomes[metric]


def _cost(asked: Sequence[ScoredItem], info: SystemInfo | None, solved: int) -> Cost:
    seconds = sum(item.seconds for item in asked)
    tokens = sum(item.completion_tokens for item in asked)
    price = _price(asked, info)
    return Cost(
        requests=len(asked),
        prompt_tokens=_quantiles([item.prompt_tokens for item in asked]),
        completion_tokens=_quantiles([item.completion_tokens for item in asked]),
        seconds=_quantiles([item.seconds for item in asked]),
        completion_tokens_per_second=tokens / seconds if seconds > 0 else None,
        price=price,
        price_per_solved=price / solved if price is not None and solved else None,
    )


def _price(asked: Sequence[ScoredItem], info: SystemInfo | None) -> float | None:
    """Tokens at their prices, and the machine's time; None where no price is given."""
    if info is None or (info.price_prompt, info.price_completion, info.price_hour) == (None, None, None):
        return None
    tokens = sum(
        item.prompt_tokens * (info.price_prompt or 0) + item.completion_tokens * (info.price_completion or 0)
        for item in asked
    )
    hours = info.wall_seconds / 3600 * len(asked) / info.answered if info.answered else 0.0
    return tokens / 1e6 + hours * (info.price_hour or 0)


def _quantiles(values: Sequence[float]) -> Quantiles:
    return Quantiles(
        total=sum(values), p50=quantile(values, 0.5), p95=quantile(values, 0.95), p99=quantile(values, 0.99)
    )


def _failure(item: ScoredItem) -> Failure:
    return Failure(
        id=item.id,
        part=item.part,
        query=item.query,
        reference=item.references[0],
        candidate=item.candidate or "",
        fault=item.fault or FirstFault.UNPARSEABLE,
        finding=item.finding,
    )


def _comparisons(
    overall: Mapping[str, Sequence[ScoredItem]], teacher: str | None, meta: ReportMeta
) -> Iterable[Comparison]:
    """Known pairs, the teacher with each other system, and all pairs of a few unknown systems."""
    others = [name for name in overall if name not in SYSTEMS]
    pairs = [pair for pair in _COMPARED if set(pair) <= overall.keys()]
    if teacher is not None:
        pairs += [(teacher, name) for name in overall if name != teacher and (teacher, name) not in pairs]
    if not pairs:
        pairs = [(a, b) for i, a in enumerate(others) for b in others[i + 1 :]][:_MOST_PAIRS]
    for first, second in pairs:
        left, right = (_by_id(overall[name]) for name in (first, second))
        for metric in METRICS:
            found = _compare(first, second, metric, [(left[i], right[i]) for i in left if i in right], meta)
            if found is not None:
                yield found


def _by_id(items: Iterable[ScoredItem]) -> dict[str, ScoredItem]:
    return {item.id: item for item in first_samples(items)}


def _variant_effects(
    by_system: Mapping[str, Sequence[ScoredItem]], suites: Sequence[Suite], meta: ReportMeta
) -> Iterable[Comparison]:
    """Each item under the plain catalog and under a variant of it, system by system."""
    for name, rows in by_system.items():
        found = _by_id(rows)
        for suite in suites[1:]:
            if VariantKind.NO_WORKER in _parts([suite]):
                continue  # the right plan is another one there
            pairs = [
                (found[origin], found[example.id])
                for example in suite.examples
                if example.id in found and (origin := origin_id(example.id)) in found and origin != example.id
            ]
            for metric in _VARIANT_METRICS:
                effect = _compare(f"{name}", f"{name} on {suite.name}", metric, pairs, meta)
                if effect is not None:
                    yield effect


def _compare(
    first: str, second: str, metric: str, pairs: Sequence[tuple[ScoredItem, ScoredItem]], meta: ReportMeta
) -> Comparison | None:
    values = [(_value(left, metric), _value(right, metric)) for left, right in pairs]
    scored = [(a, b) for a, b in values if a is not None and b is not None]
    if not scored:
        return None
    test: Callable[..., Difference] = paired_rate if metric in RATES else paired_mean if metric in MEANS else paired_f1
    base, tuned = zip(*scored, strict=True)
    found = test(base, tuned, seed=meta.seed, resamples=meta.resamples)
    return Comparison(
        first=first,
        second=second,
        metric=metric,
        items=len(scored),
        difference=found.difference,
        low=found.low,
        high=found.high,
        p_value=found.p_value,
        only_first=found.only_base,
        only_second=found.only_tuned,
    )


def _examples_hash(examples: Sequence[Example]) -> str:
    digest = hashlib.sha256()
    for example in examples:
        digest.update((example.model_dump_json() + "\n").encode())
    return digest.hexdigest()
