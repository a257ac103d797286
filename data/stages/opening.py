"""Opens the source of a data set as a stream of chunks, names the files that its rows depend on, and opens benchmarks.

A user's JSONL file and a teacher's answers are read piece by piece; the other sources give all their rows at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from plansmith.contract.catalog import Catalog
from plansmith.contract.errors import InputError
from plansmith.contract.progress import Progress
from plansmith.contract.records import Query, Reject
from plansmith.contract.store import iter_lines
from plansmith.data.config import (
    BenchmarkConfig,
    BfclBenchmark,
    BfclSource,
    DataConfig,
    FileBenchmark,
    JsonlSource,
    NestfulSource,
    ScriptSource,
    Source,
    TeacherSource,
)
from plansmith.data.decontaminate import Benchmark, TestText
from plansmith.data.query_sources.base import Found
from plansmith.data.sources.base import Loaded
from plansmith.data.stages.execution import Record
from plansmith.data.stages.rows import Item
from plansmith.data.stages.runners import ROWS_AT_ONCE, Chunk

_ANY_LENGTH = 2**31


@dataclass(slots=True)
class Opened:
    """A source, ready to be read once."""

    name: str
    licence: str
    catalog: Catalog
    total: int
    """Rows, those included that the source rejects."""
    chunks: Iterable[Chunk]
    notes: Counter[str]
    """What the conversion changed, by kind; complete once the chunks are read."""


def open_source(config: DataConfig, *, seed: int, progress: Progress) -> Opened:
    """Open the source of a config.

    Raises:
        InputError: its files cannot be used.
        ServiceError: a package could not be fetched.

    """
    source = config.source
    if isinstance(source, JsonlSource):
        return _open_jsonl(source)
    if isinstance(source, TeacherSource):
        return _open_teacher(source)
    loaded = _load(source, seed=seed, progress=progress, max_steps=config.max_steps)
    items = [*loaded.rejects, *(Item(row) for row in loaded.candidates)]
    notes = Counter(loaded.notes)
    return Opened(loaded.name, loaded.licence, loaded.catalog, len(items), chunked(items), notes)


def chunked(items: Iterable[Item | Reject]) -> Iterator[list[Item | Reject]]:
    """Rows in chunks."""
    source = iter(items)
    while chunk := list(islice(source, ROWS_AT_ONCE)):
        yield chunk


def _load(
    source: NestfulSource | BfclSource | ScriptSource, *, seed: int, progress: Progress, max_steps: int | None
) -> Loaded:
    if isinstance(source, NestfulSource):
        from plansmith.data.sources.nestful import load_nestful

        return load_nestful(source, progress, max_steps=max_steps)
    if isinstance(source, BfclSource):
        from plansmith.data.sources.bfcl import load_bfcl

        return load_bfcl(source, progress)
    from plansmith.data.sources.script import load_script

    return load_script(source, seed=seed)


def _open_jsonl(source: JsonlSource) -> Opened:
    from plansmith.data.sources.lines import scan

    catalog = Catalog.load(source.catalog)
    pieces = scan(source.path)
    total = sum(piece.rows for piece in pieces)
    return Opened(source.path.name, source.licence, catalog, total, pieces, Counter())


def _open_teacher(source: TeacherSource) -> Opened:
    from plansmith.data.drafts import DRAFTS, FAILED
    from plansmith.data.queries import load_queries

    run = _run_of(source)
    asked = load_queries(run)
    notes: Counter[str] = Counter()
    failed = run / FAILED
    if failed.exists() and (number := sum(1 for _ in iter_lines(failed))):
        notes["requests_without_answer"] = number
    total = sum(1 for _ in iter_lines(run / DRAFTS))
    queries = {query.query: query for query in asked.queries}
    licences = sorted({one.licence for one in asked.manifest.sources if one.licence})
    licence = source.licence or "; ".join(licences)
    items = _answers(source, queries, notes, total)
    return Opened(f"teacher in {run.name}", licence, asked.catalog, total, chunked(items), notes)


def _run_of(source: TeacherSource) -> Path:
    if source.run is None:
        raise InputError("the source 'teacher' names no run directory; give 'source.run', or build in that directory.")
    return source.run


def _answers(
    source: TeacherSource, queries: dict[str, Query], notes: Counter[str], total: int
) -> Iterator[Item | Reject]:
    """Each answer of the teacher as a row, with the recorded plan of its query where there is one."""
    from plansmith.data.drafts import iter_candidates, iter_drafts
    from plansmith.data.teacher_config import Repaired

    repaired = Repaired.KEEP if source.keep_repaired else Repaired.REJECT
    found = 0
    for answer in iter_candidates(iter_drafts(_run_of(source)), queries, repaired=repaired):
        found += 1
        if answer.repairs:
            notes["repaired_answers"] += 1
        if isinstance(answer.row, Reject):
            yield answer.row
            continue
        query = queries[answer.row.query]
        recorded = query.reference is not None and query.results is not None
        yield Item(answer.row, Record(query.reference or [], query.results or []) if recorded else None)
    if total > found:
        notes["answers_to_other_queries"] = total - found


def input_files(config: DataConfig) -> list[Path]:
    """Files of the user that rows come from; for a script also the Python files beside it, which it may import."""
    pool = config.augment.distractor_catalog if config.augment is not None else None
    others = [path for one in config.benchmarks for path in _benchmark_files(one)]
    return [*_source_files(config.source), *others, *([pool] if pool is not None else [])]


def _source_files(source: Source) -> list[Path]:
    if isinstance(source, JsonlSource):
        return [source.path, source.catalog]
    if isinstance(source, TeacherSource):
        from plansmith.data.drafts import DRAFTS, FAILED
        from plansmith.data.queries import CATALOG, MANIFEST, QUERIES

        failed = _run_of(source) / FAILED
        named = [_run_of(source) / name for name in (DRAFTS, QUERIES, CATALOG, MANIFEST)]
        return [*named, failed] if failed.exists() else named
    if isinstance(source, ScriptSource):
        from plansmith.data.sources.script import catalog_path

        beside = sorted(path for path in source.path.parent.glob("*.py") if path != source.path)
        return [source.path, catalog_path(source), *source.extra, *beside]
    return [source.wheel] if source.wheel is not None else []


def _benchmark_files(benchmark: BenchmarkConfig) -> list[Path]:
    if isinstance(benchmark, FileBenchmark):
        return [benchmark.path]
    return [benchmark.wheel] if benchmark.wheel is not None else []


def open_benchmarks(config: DataConfig, counted: Counter[str], progress: Progress) -> list[Benchmark]:
    """The named benchmarks of a config; their texts are read once, and one without any text is an `InputError` then.

    Args:
        config: with the benchmarks.
        counted: where rows are counted that hold no text, once the texts are read.
        progress: told of fetching.

    Raises:
        InputError: a file cannot be used.
        ServiceError: a package could not be fetched.

    """
    found = (one for benchmark in config.benchmarks for one in _open_benchmark(benchmark, progress))
    return [Benchmark(one.source, _texts(one, counted)) for one in found]


def _open_benchmark(benchmark: BenchmarkConfig, progress: Progress) -> list[Found]:
    from plansmith.data.query_sources.logs import read_log
    from plansmith.data.query_sources.recorded import read_bfcl_queries, read_nestful_queries
    from plansmith.data.teacher_config import BfclQueries, LogQueries, NestfulQueries, NestfulSet

    if isinstance(benchmark, FileBenchmark):
        log = LogQueries(kind="log", path=benchmark.path, field=benchmark.field, max_characters=_ANY_LENGTH)
        return [read_log(log)]
    if isinstance(benchmark, BfclBenchmark):
        everything = BfclQueries(kind="bfcl", wheel=benchmark.wheel)
        return [read_bfcl_queries(everything, progress, own_catalog=False)]
    parts = (NestfulQueries(kind="nestful", part=part, wheel=benchmark.wheel) for part in NestfulSet)
    return [read_nestful_queries(part, progress) for part in parts]


def _texts(found: Found, counted: Counter[str]) -> Iterator[TestText]:
    """The texts of a benchmark; raises `InputError` at the end where there are none, as nothing would be protected."""
    texts = 0
    first: Reject | None = None
    for row in found.rows:
        if isinstance(row, Query):
            texts += 1
            yield TestText(row.id, row.query)
        else:
            first = first or row
            counted[f"rows without text in {found.source}"] += 1
    if not texts:
        why = f"the first row: {first.detail}" if first is not None else "it holds no rows."
        raise InputError(f"benchmark {found.source!r} has no text that could be kept out of training; {why}")
