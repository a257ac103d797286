"""Build a data set. Reading it again: `plansmith.data.built`.

Reads a source; writes `catalog.json`, `{train,val,test,rejects}.jsonl`, `removed.jsonl` (where test texts are kept out
of training), `catalogs.json` (where training rows are copied for changed catalogs) and, last, `manifest.json` into a
folder. Rows go through the stages of `plansmith.data.stages`:

    source -> check, grounding, execution, outcome (each row alone, in several processes where there are many)
           -> vote, judge, choice (answers to one query) -> dedupe -> split -> decontaminate -> augment -> files

Each stage counts what it read, kept and rejected; each reject is kept with its reason. Rows wait in files between the
stages, so memory does not grow with what they hold. Everything is written into a folder beside first and then moved in;
a build that is stopped leaves the earlier data set as it was, and one that is stopped while moving is finished by the
next reader. The same inputs build nothing again.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from plansmith.contract.catalog import Catalog
from plansmith.contract.errors import InputError
from plansmith.contract.progress import Progress
from plansmith.contract.records import Split
from plansmith.contract.store import StorageError, file_hash, write_text
from plansmith.data.augment import Augmenter, make_variants
from plansmith.data.built import (
    CATALOG,
    CATALOGS,
    COMPLETE,
    REJECTS,
    REMOVED,
    Built,
    DataSet,
    finish_moving,
    load_data,
    open_data,
    require_files,
)
from plansmith.data.config import CatalogScope, DataConfig
from plansmith.data.dedupe_config import DecontaminateConfig
from plansmith.data.manifest import MANIFEST, Manifest, read_manifest
from plansmith.data.packages import text_hash
from plansmith.data.sides import Facts, Sides
from plansmith.data.stages.contamination import drop_contaminated, write_removals
from plansmith.data.stages.judge import Judge, judge_rows
from plansmith.data.stages.opening import Opened, input_files, open_benchmarks, open_source
from plansmith.data.stages.repeats import drop_repeats
from plansmith.data.stages.rows import CheckSettings
from plansmith.data.stages.runners import Runner, runner_for
from plansmith.data.stages.store import RowStore
from plansmith.data.stages.tally import Stage, Tallies
from plansmith.data.stages.vote import Equivalent, Likelihood, choose, vote
from plansmith.data.stages.writing import Written, example_of, write_examples, write_lines
from plansmith.data.substitute import Pools
from plansmith.data.verify import normalise_query
from plansmith.data.verify_config import rules_for

__all__ = [
    "CATALOG",
    "CATALOGS",
    "REJECTS",
    "REMOVED",
    "Built",
    "DataSet",
    "Helpers",
    "build_data",
    "describe",
    "inputs_hash",
    "load_data",
    "open_data",
]
DATA_VERSION = 4
"""Raised whenever the same inputs would give other rows."""
_WORK, _BUILDING = ".data-work", ".data-building"


@dataclass(frozen=True, slots=True)
class Helpers:
    """What other stages of the project can do for a build; the command line hands it in."""

    equivalent: Equivalent | None = None
    """Whether two plans agree, for the vote; None: where their texts are equal."""
    judge: Judge | None = None
    """Who is asked whether a plan is right."""
    likelihood: Likelihood | None = None
    """The student that chooses among right answers."""
    student: str = ""
    """What the student's likelihoods depend on: a hash of the model."""
    runner: Runner | None = None
    """Who checks rows; None: this process, or several on this machine."""

    def identity(self) -> list[Any]:
        """What the outcome of a build depends on."""
        judge = None if self.judge is None else [self.judge.name, dict(self.judge.identity)]
        return [self.equivalent is not None, judge, self.student]


NO_HELP = Helpers()


def build_data(config: DataConfig, out: Path, *, seed: int, progress: Progress, helpers: Helpers = NO_HELP) -> Manifest:
    """Build the data set of a config, unless it is there already.

    Args:
        config: the source, the checks, the split.
        out: the folder; also of the judge's verdicts. The caller sees to it that no other process works in it.
        seed: of the split.
        progress: told of each stage.
        helpers: what other stages can do for this one.

    Raises:
        InputError: the config's files cannot be used, or no row is left.
        ServiceError: a package could not be fetched, or the judge is gone.
        StorageError: the folder cannot be written; an earlier data set there stays as it was.

    """
    config = config.in_run(out)
    _require_helpers(config, helpers)
    finish_moving(out)
    inputs = inputs_hash(config, seed=seed, helpers=helpers)
    earlier = _complete(out, inputs)
    if earlier is not None:
        progress.note(f"data in {out}: already built from the same inputs, nothing to do")
        return earlier
    try:
        with _workspace(out) as folder, RowStore(folder) as store:
            build = _Build(config, helpers, out, seed, progress, store)
            manifest = build.run(inputs)
    except OSError as error:
        raise StorageError(f"cannot write data into {str(out)!r}: {error.strerror or error}.") from error
    finish_moving(out)
    progress.note(describe(manifest))
    return manifest


def _require_helpers(config: DataConfig, helpers: Helpers) -> None:
    if config.verify.judge is not None and helpers.judge is None:
        raise InputError("verify.judge is set, but no model is given that could judge. Give one, or unset it.")
    if config.verify.likeliest and helpers.likelihood is None:
        raise InputError("verify.likeliest is set, but no student is given. Give one, or unset it.")


@contextmanager
def _workspace(out: Path) -> Generator[Path]:
    """A folder for rows between the stages; what a killed build left there is removed first."""
    folder = out / _WORK
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(slots=True)
class _Build:
    """One build."""

    config: DataConfig
    helpers: Helpers
    out: Path
    seed: int
    progress: Progress
    store: RowStore
    tallies: Tallies = field(default_factory=Tallies)
    unsettled: int = 0

    def run(self, inputs: str) -> Manifest:
        """All stages."""
        opened = open_source(self.config, seed=self.seed, progress=self.progress)
        asked = self._check(opened)
        self._compare_answers(asked, opened.catalog)
        facts = Facts(len(self.store), self.seed)
        dedupe = self.tallies[Stage.DEDUPE]
        drop_repeats(self.store, self.config.dedupe, dedupe, self.progress, seed=self.seed, kept=facts.set)
        self._require_rows(opened)
        sides = Sides(facts, self.config.split)
        building = self._begin()
        self._decontaminate(sides, building)
        augmenter = self._augmenter(sides, opened.catalog)
        written = write_examples(self.store, sides.where, building, self.progress, augmenter)
        if augmenter is not None:
            self._finish_augmenting(augmenter, written, building)
        write_lines(building / REJECTS, self.store.rejects.lines())
        manifest = self._manifest(opened, written, inputs)
        return self._complete(building, opened.catalog, manifest, written)

    def _check(self, opened: Opened) -> Counter[int]:
        """Check each row alone and store it; how many answers each query has, where there is a vote."""
        rules = rules_for(self.config.verify, self.config.source.kind)
        settings = CheckSettings(opened.catalog, rules, self.config.max_steps)
        runner = self.helpers.runner or runner_for(self.config.processes, opened.total)
        asked: Counter[int] = Counter()
        number = 0
        self.progress.start("plans to check", opened.total)
        with closing(runner.run(opened.chunks, settings)) as chunks:
            for checked in chunks:
                self.tallies.add(checked.tallies)
                for at, line in enumerate(checked.lines, number):
                    self.store.put(at, line)
                if self.config.verify.vote is not None:
                    asked.update(line.group for line in checked.lines if not line.reserved)
                number += len(checked.lines)
                self.progress.advance(len(checked.lines))
        self.progress.finish()
        return asked

    def _compare_answers(self, asked: Counter[int], catalog: Catalog) -> None:
        """The stages that look at several answers to one query, or ask another model."""
        verify, helpers, store, progress = self.config.verify, self.helpers, self.store, self.progress
        if verify.vote is not None:
            vote(store, asked, verify.vote, helpers.equivalent, self.tallies[Stage.VOTE], progress)
        if verify.judge is not None and helpers.judge is not None:
            tally = self.tallies[Stage.JUDGE]
            self.unsettled = judge_rows(store, helpers.judge, catalog, verify.judge, self.out, tally, progress)
        if verify.vote is not None or verify.likeliest:
            student = helpers.likelihood if verify.likeliest else None
            choose(store, catalog, student, self.tallies[Stage.CHOICE], progress)

    def _require_rows(self, opened: Opened) -> None:
        if self.store.left:
            return
        rejects = [json.loads(line) for line in islice(self.store.rejects.lines(), 3)]
        first = "; ".join(f"{row['reason']}: {row['detail']}" for row in rejects)
        raise InputError(
            f"none of {self.tallies[Stage.SOURCE].read} rows of {opened.name!r} can be used. "
            + (f"First reasons: {first}" if first else "")
        )

    def _begin(self) -> Path:
        building = self.out / _WORK / _BUILDING
        building.mkdir()
        return building

    def _decontaminate(self, sides: Sides, building: Path) -> None:
        """Take what repeats a test text out of training and validation."""
        config = self.config.decontaminate
        if config is None and not self.config.benchmarks:
            return
        tally = self.tallies[Stage.DECONTAMINATE]
        removed = drop_contaminated(
            self.store,
            sides.where,
            open_benchmarks(self.config, tally.counted, self.progress),
            config or DecontaminateConfig(),
            tally,
            self.progress,
            seed=self.seed,
        )
        write_removals(building / REMOVED, removed)
        sides.name_parts(self.store.alive)
        if removed and not sides.trained:
            raise InputError(
                f"nothing is left for training: all rows repeat test texts ({len(removed)} were dropped as "
                "contaminated). Make the test parts smaller, or loosen 'decontaminate'."
            )

    def _augmenter(self, sides: Sides, catalog: Catalog) -> Augmenter | None:
        """Who copies training rows; it has looked at all rows once: values of training, queries of the others."""
        config = self.config.augment
        if config is None:
            return None
        pools, held_out, used = Pools(self.seed), set[str](), set[str]()
        self.progress.start("rows to look at for copies", self.store.left)
        for number, row, _ in self.store.rows():
            example = example_of(row, sides.where(number))
            used.update(str(step["type"]) for step in row.plan)
            if example.split is Split.TRAIN:
                pools.add(example)
            else:
                held_out.add(normalise_query(row.query))
            self.progress.advance()
        self.progress.finish()
        own = catalog.subset(sorted(used)) if self.config.catalog is CatalogScope.USED else catalog
        pool = Catalog.load(config.distractor_catalog) if config.distractor_catalog is not None else None
        return Augmenter(make_variants(own, pool, config, seed=self.seed), config, self.seed, pools, held_out)

    def _finish_augmenting(self, augmenter: Augmenter, written: Written, building: Path) -> None:
        """The changed catalogs as a file, and the counts."""
        tally = self.tallies[Stage.AUGMENT]
        tally.read = written.counter.sides[Split.TRAIN, "train"] - written.counter.augmented + written.counter.replaced
        tally.counted.update(augmenter.counted)
        tally.counted["replaced"] += written.counter.replaced
        catalogs = {variant.catalog.hash: variant.catalog.to_json() for variant in augmenter.variants}
        write_text(building / CATALOGS, json.dumps(catalogs, ensure_ascii=False, indent=1) + "\n")

    def _manifest(self, opened: Opened, written: Written, inputs: str) -> Manifest:
        return Manifest(
            source=opened.name,
            licence=opened.licence,
            seed=self.seed,
            catalog_name="",
            catalog_hash="",
            counts=written.counter.counts(self.store.rejects.counts, read=self.tallies[Stage.SOURCE].read),
            families=written.counter.family_counts(),
            stages=tuple(self.tallies.counts()),
            unsettled=self.unsettled,
            warnings=dict(sorted(written.warnings.items())),
            notes=dict(opened.notes),
            files={},
            inputs=inputs,
            config=_config_json(self.config),
        )

    def _complete(self, building: Path, catalog: Catalog, manifest: Manifest, written: Written) -> Manifest:
        """Write catalog and manifest, and mark the data set as complete."""
        if self.config.catalog is CatalogScope.USED:
            catalog = catalog.subset(sorted(written.workers))
        write_text(building / CATALOG, json.dumps(catalog.to_json(), ensure_ascii=False, indent=1) + "\n")
        hashes = {path.name: file_hash(path) for path in sorted(building.iterdir())}
        manifest = manifest.model_copy(
            update={"files": hashes, "catalog_name": catalog.name, "catalog_hash": catalog.hash}
        )
        write_text(building / MANIFEST, manifest.model_dump_json(indent=1) + "\n")
        building.rename(self.out / COMPLETE)
        return manifest


def describe(manifest: Manifest) -> str:
    """One line with every count."""
    counts = manifest.counts
    test = ", ".join(f"{part} {number}" for part, number in counts.test.items()) or "none"
    dropped = ", ".join(f"{reason} {number}" for reason, number in counts.rejects.items()) or "none"
    made = f" ({counts.augmented} of them copies, {counts.replaced} rows replaced)" if counts.augmented else ""
    return (
        f"{counts.read} rows read from {manifest.source}: train {counts.train}{made}, val {counts.val}, test ({test}), "
        f"dropped ({dropped})"
    )


def inputs_hash(config: DataConfig, *, seed: int, helpers: Helpers = NO_HELP) -> str:
    """Sha256 over everything that a build depends on.

    Raises:
        InputError: an input file cannot be read.

    """
    hashes: dict[str, str] = {}
    for path in input_files(config):
        try:
            hashes[str(path)] = file_hash(path)
        except OSError as error:
            raise InputError(f"input {str(path)!r} cannot be read: {error.strerror or error}.") from error
    parts = [DATA_VERSION, seed, _config_json(config), hashes, helpers.identity()]
    return text_hash(json.dumps(parts, sort_keys=True))


def _config_json(config: DataConfig) -> dict[str, Any]:
    """The config without what the outcome does not depend on."""
    return config.model_dump(mode="json", exclude={"processes", "ray"})


def _complete(out: Path, inputs: str) -> Manifest | None:
    """The manifest of a data set that was built from the same inputs, is settled, and whose files are unchanged."""
    try:
        manifest = read_manifest(out)
        require_files(out, manifest)
    except InputError:
        return None
    return manifest if manifest.inputs == inputs and not manifest.unsettled else None
