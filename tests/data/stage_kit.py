"""A catalog with records, rows for every fate, and builds whose counts are added up; for the tests of the stages."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from plansmith.contract.catalog import Catalog
from plansmith.contract.endpoint import Message, Text
from plansmith.contract.errors import ServiceError
from plansmith.contract.progress import Silent
from plansmith.contract.records import Example, FinishReason, Reject
from plansmith.contract.store import read_rows
from plansmith.data.build import NO_HELP, Helpers, build_data
from plansmith.data.config import DataConfig
from plansmith.data.manifest import Manifest
from plansmith.data.stages.judge import Judge
from plansmith.data.stages.tally import Stage, StageCounts

Json = Any


def _worker(name: str, properties: dict[str, Any], required: list[str], effect: str = "read") -> dict[str, Any]:
    args = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return {"name": name, "description": f"Does {name}.", "args": args, "effect": effect}


CATALOG: dict[str, Any] = {
    "version": 1,
    "name": "stages",
    "workers": [
        _worker("find", {"text": {"type": "string"}, "most": {"type": "integer"}}, ["text"]),
        _worker(
            "stay",
            {"place": {"type": "string"}, "kind": {"enum": ["inn", "tent"]}, "note": {"type": "string"}},
            ["place"],
        ),
        _worker("send", {"to": {"type": "string"}}, ["to"], effect="write"),
        _worker("now", {}, []),
    ],
}
CAT = Catalog.from_json(CATALOG)


def step(worker: str, **args: Json) -> dict[str, Json]:
    return {"type": worker, "args": args}


def ref(pointer: str) -> dict[str, str]:
    return {"$from": pointer}


FOUND = {"id": "p-771", "near": [{"id": "q-1"}, {"id": "q-2"}]}
ROOMS = {"rooms": ["blue"]}


def good(text: str = "lisbon") -> dict[str, Json]:
    """A row that passes every check: find a place, stay there."""
    plan = [step("find", text=text), step("stay", place=ref("/0/id"))]
    return {"query": f"A stay in {text}", "plan": plan, "results": [FOUND, ROOMS], "answer": [ROOMS]}


STRICT: dict[str, Json] = {
    "grounding": {"rule": "reject"},
    "execution": {"rule": "reject"},
    "outcome": "reject",
}


@dataclass
class Built:
    """A finished build."""

    out: Path
    manifest: Manifest

    @property
    def kept(self) -> list[Example]:
        return [row for name in ("train", "val", "test") for row in read_rows(self.out / f"{name}.jsonl", Example)]

    @property
    def rejects(self) -> list[Reject]:
        return read_rows(self.out / "rejects.jsonl", Reject)

    @property
    def reasons(self) -> dict[str, int]:
        return self.manifest.counts.rejects

    def stage(self, stage: Stage) -> StageCounts:
        return next(one for one in self.manifest.stages if one.stage is stage)


def write_source(folder: Path, rows: Iterable[Json | bytes]) -> dict[str, Json]:
    """Rows in a file, bytes as they are, and the catalog beside it; the source of a config."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "catalog.json").write_text(json.dumps(CATALOG))
    lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
    (folder / "rows.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    return {"kind": "jsonl", "path": folder / "rows.jsonl", "catalog": folder / "catalog.json"}


def configured(source: Mapping[str, Json], **more: Json) -> DataConfig:
    """Everything is for training, and every check rejects, unless said otherwise."""
    split = {"val": 0, "seen": 0, "unseen": 0}
    return DataConfig.model_validate({"source": source, "split": split, "verify": STRICT} | more)


def built(folder: Path, rows: Sequence[Json | bytes], helpers: Helpers = NO_HELP, **more: Json) -> Built:
    """Build rows in a folder, and add up all counts."""
    out = folder / "out"
    config = configured(write_source(folder, rows), **more)
    found = Built(out, build_data(config, out, seed=0, progress=Silent(), helpers=helpers))
    add_up(found, len(rows))
    return found


CHAIN = (Stage.SOURCE, Stage.CHECK, Stage.GROUNDING, Stage.EXECUTION, Stage.OUTCOME)


def add_up(found: Built, read: int) -> None:
    """Every row is in one file once, and the counts of the stages say so."""
    counts, stages = found.manifest.counts, {one.stage: one for one in found.manifest.stages}
    assert counts.read == read
    assert len(found.kept) + len(found.rejects) == read
    assert Counter(row.reason for row in found.rejects) == counts.rejects
    by_stage: Counter[str] = Counter()
    for one in stages.values():
        by_stage.update(one.rejected)
    assert +by_stage == counts.rejects
    assert stages[Stage.SOURCE].read == read
    alone = [stages[stage] for stage in CHAIN if stage in stages]
    for before, after in pairwise(alone):
        assert after.read == before.kept, (before, after)
    late = [stages[stage] for stage in (Stage.VOTE, Stage.JUDGE, Stage.CHOICE) if stage in stages]
    for before, after in pairwise(late):
        assert after.read == before.kept, (before, after)
    dropped_late = sum(sum(one.rejected.values()) for one in late)
    assert stages[Stage.DEDUPE].read == alone[-1].kept - dropped_late


@dataclass
class ScriptedJudge:
    """A judge that looks for words in the question; each question that it is asked is noted."""

    asked: list[str] = field(default_factory=list[str])
    fail: bool = True
    """Whether it does not answer about `silent`."""

    async def write(
        self,
        messages: Sequence[Message],
        *,
        temperature: float | None = None,
        seed: int | None = None,
        max_tokens: int | None = None,
        schema: dict[str, Any] | None = None,
    ) -> Text:
        question = messages[-1]["content"]
        self.asked.append(question)
        if "silent" in question and self.fail:
            raise ServiceError("the judge does not answer")
        if "withheld" in question and self.fail:
            return Text("", 0, 0, 0.0, FinishReason.ERROR, "withheld")
        if "mumble" in question:
            return Text("I would say yes.", 10, 5, 0.0, FinishReason.STOP)
        if "endless" in question:
            return Text('{"why": "and so on', 10, 5, 0.0, FinishReason.LENGTH)
        right = "wrongly" not in question
        return Text(json.dumps({"why": "so it is", "right": right}), 10, 5, 0.0, FinishReason.STOP)

    def help(self) -> Helpers:
        return Helpers(judge=Judge(self, "judge-1"))
