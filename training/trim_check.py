"""Trims a model's vocabulary and measures whether the copy keeps its three promises before anybody gets it.

Reads a model directory and texts; writes the trimmed copy in place of nothing or of an earlier one. The promises:

1. any text comes back from the trimmed tokenizer as it comes back from the full one, and the texts given have the same
   tokens in both (some tokenizers, Qwen's among them, normalise text to NFC: both do);
2. on the tokens kept the logits are the full model's, up to the rounding of a matrix product of another shape;
3. a server loads it: as many embedding rows as `vocab_size` says and as the tokenizer has tokens, ids without holes,
   tied weights stored once, stop ids that are tokens. This is what vLLM's loader asserts; vLLM itself is not run here.

Not covered: texts of which not a single one is given (there is nothing to keep, and it is refused).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from tokenizers import Tokenizer
from transformers import PreTrainedModel

from plansmith.contract.errors import InputError, PlansmithError
from plansmith.contract.progress import Progress
from plansmith.contract.store import write_text
from plansmith.training.files import CARD_NAME, hash_files, replace_directory, require_replaceable
from plansmith.training.model import TERMS, check_tokenizer, is_gemma, load_stored, quiet
from plansmith.training.trim import Kept, plan_trim, require_trimmable, write_shrunk

_SAMPLES, _SAMPLE_TOKENS = 4, 96
_BY_TOKEN = ("embed_tokens.weight", "lm_head.weight")
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 2e-3}
"""Largest difference of a logit, as a share of the largest logit."""
_PROBE = "".join(map(chr, range(32, 127))) + '\n\t é ß 日本 🙂 ￼ \u200d {"a":[1.0]}'
NOTE = "trimmed.json"


class BrokenPromiseError(PlansmithError):
    """A trimmed copy does not mean the same as its original, so it is not kept: this is a fault of ours."""


class TrimReport(NamedTuple):
    """What was made, and what was measured of it."""

    tokens: int
    of_tokens: int
    parameters: int
    of_parameters: int
    texts: int
    """Texts whose tokens were compared, one by one."""
    logits: int
    """Places whose logits were compared, over all kept tokens."""
    logit_difference: float
    """The largest found."""
    left: list[str]
    """Files of the original that have no copy: they describe the full vocabulary, or are none of the model's."""


def trim_model(base: Path, out: Path, texts: Sequence[str], *, keep_merges: int, progress: Progress) -> TrimReport:
    """Write the trimmed copy of a model directory, checked.

    Raises:
        InputError: there are no texts, or the model's vocabulary cannot be trimmed.
        BrokenPromiseError: the copy would mean something else; nothing is written.
        StorageError: the copy cannot be written; an earlier one is still there.

    """
    require_replaceable(out, NOTE, "trimmed model")
    texts = list(dict.fromkeys(text for text in texts if text))
    if not texts:
        raise InputError("there are no texts to keep tokens for; give texts that the model shall read.")
    spec, kept = plan_trim(base, texts, keep_merges=keep_merges)
    check_tokenizer(base)
    progress.note(f"trim: keeping {len(kept.old_ids)} of {_size(base)} tokens")
    model = load_stored(base)
    require_trimmable(model, base)
    samples = _samples(base, texts)
    before = [_logits(model, ids)[:, kept.old_ids] for ids in samples]
    of_parameters = model.num_parameters()
    found: list[TrimReport] = []

    def build(draft: Path) -> None:
        with quiet():
            left = write_shrunk(model, base, draft, spec, kept)
        check_tokenizer(draft)
        compared = _check_tokens(base, draft, texts)
        places, difference = _check_logits(draft, kept, samples, before)
        check_layout(draft)
        report = TrimReport(
            tokens=len(kept.old_ids),
            of_tokens=_size(base),
            parameters=model.num_parameters(),
            of_parameters=of_parameters,
            texts=compared,
            logits=places,
            logit_difference=difference,
            left=left,
        )
        found.append(report)
        _write_notes(base, draft, report)

    replace_directory(out, build)
    return found[0]


def _size(base: Path) -> int:
    return Tokenizer.from_file(str(base / "tokenizer.json")).get_vocab_size()


def _samples(base: Path, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of the longest texts, cut to a length that any machine can run."""
    tokenizer = Tokenizer.from_file(str(base / "tokenizer.json"))
    chosen = sorted(texts, key=len, reverse=True)[:_SAMPLES]
    return [tokenizer.encode(text, add_special_tokens=False).ids[:_SAMPLE_TOKENS] for text in chosen]


def _logits(model: PreTrainedModel, ids: Sequence[int]) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(torch.tensor([list(ids)])).logits[0].float()


def _check_tokens(base: Path, draft: Path, texts: Sequence[str]) -> int:
    """The texts have the same tokens in both vocabularies, and come back as from the full one."""
    full, small = (Tokenizer.from_file(str(folder / "tokenizer.json")) for folder in (base, draft))
    for text in (*texts, _PROBE):
        wanted, found = (tokenizer.encode(text, add_special_tokens=False) for tokenizer in (full, small))
        if text is not _PROBE and wanted.tokens != found.tokens:
            raise BrokenPromiseError(f"{text[:60]!r} has other tokens in the trimmed vocabulary. Please report this.")
        if full.decode(wanted.ids, skip_special_tokens=False) != small.decode(found.ids, skip_special_tokens=False):
            raise BrokenPromiseError(f"{text[:60]!r} is lost in the trimmed vocabulary. Please report this.")
    return len(texts)


def _check_logits(
    draft: Path, kept: Kept, samples: Sequence[Sequence[int]], before: Sequence[torch.Tensor]
) -> tuple[int, float]:
    """The copy on disk gives the full model's logits; returns how many places were compared, and the difference."""
    model = load_stored(draft)
    new_id = {old: new for new, old in enumerate(kept.old_ids)}
    worst = 0.0
    for ids, wanted in zip(samples, before, strict=True):
        found = _logits(model, [new_id[index] for index in ids])
        difference = float((found - wanted).abs().max())
        most = _TOLERANCE.get(model.dtype, 2e-2) * max(1.0, float(wanted.abs().max()))
        if not difference <= most:
            raise BrokenPromiseError(
                f"a logit of the trimmed model differs by {difference:.2e} from the full model's, at most {most:.2e} "
                "was expected. Please report this."
            )
        worst = max(worst, difference)
    return sum(map(len, samples)), worst


def check_layout(folder: Path) -> None:
    """What a server asserts when it loads a checkpoint.

    Raises:
        BrokenPromiseError: what does not fit.

    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config = config.get("text_config") or config
    spec = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    ids = sorted({*spec["model"]["vocab"].values(), *(token["id"] for token in spec["added_tokens"])})
    rows = {
        name: shape[0]
        for name, shape in _shapes(folder).items()
        if name.endswith(("embed_tokens.weight", "lm_head.weight"))
    }
    tied = config.get("tie_word_embeddings", True)
    stop = _stop_ids(folder, config)
    problems = [
        None if ids == list(range(len(ids))) else "token ids have holes",
        None if set(rows.values()) == {config["vocab_size"]} else f"rows {rows} and vocab_size {config['vocab_size']}",
        None if len(ids) == config["vocab_size"] else f"{len(ids)} tokens and vocab_size {config['vocab_size']}",
        None if len(rows) == (1 if tied else 2) else f"tied weights: {tied}, but stored are {sorted(rows)}",
        None if stop and stop <= set(ids) else f"stop ids {sorted(stop)} are not all tokens",
    ]
    found = [problem for problem in problems if problem]
    if found:
        raise BrokenPromiseError(f"a server would not load the trimmed model: {'; '.join(found)}. Please report this.")


def _shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            shapes |= {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    return shapes


def _stop_ids(folder: Path, config: dict[str, Any]) -> set[int]:
    generation = folder / "generation_config.json"
    value = json.loads(generation.read_text(encoding="utf-8")).get("eos_token_id") if generation.is_file() else None
    value = config.get("eos_token_id") if value is None else value
    return set(value) if isinstance(value, list) else set() if value is None else {value}


def _write_notes(base: Path, draft: Path, report: TrimReport) -> None:
    """`trimmed.json`, the page for people, and the card of a planner, which stays one."""
    card = base / CARD_NAME
    if card.is_file():
        values = json.loads(card.read_text(encoding="utf-8"))
        values.pop("files", None)  # of the untrimmed copy
        write_text(draft / CARD_NAME, json.dumps(values, ensure_ascii=False, indent=1) + "\n")
    name = base.resolve().name
    page = base / "README.md"
    text = page.read_text(encoding="utf-8").rstrip() if page.is_file() else f"# {name}, trimmed"
    terms = f"\n\n{TERMS}." if is_gemma(base) and TERMS not in text else ""
    write_text(
        draft / "README.md",
        f"{text}\n\n## Trimmed vocabulary\n\nThis copy keeps {report.tokens} of {report.of_tokens} tokens and "
        f"{report.parameters:,} of {report.of_parameters:,} parameters. Any text can still be written; the logits of "
        f"kept tokens are those of the full model (largest difference measured: {report.logit_difference:.1e}). Made "
        "by `plansmith model trim`. To train on it, name its folder as `model.base` and set `model.trim_vocabulary` "
        f"to false.{terms}\n",
    )
    note = {"version": 1, "base": name, **report._asdict(), "files": hash_files(draft)}
    write_text(draft / NOTE, json.dumps(note, ensure_ascii=False, indent=1) + "\n")
