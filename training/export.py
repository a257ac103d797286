"""Export: a trained planner as a folder that stands on its own, for servers and for other people.

Reads a base model, the adapter trained on it and the data set; writes, complete or not at all, into one folder

| form | files |
| --- | --- |
| `merged` | weights with the adapter merged in (safetensors), `config.json`, tokenizer, `generation_config.json` |
| `adapter` | `adapter_model.safetensors`, `adapter_config.json`: small, for a server that holds the base already |

and in both `plansmith.json` (what it was made from and for), `catalog.json`, and `README.md`, the model card. The
tokenizer's files are those of the base, its chat template included; one thing is added where the base's tokenizer
lacks it: it puts bos in front of a plain text, so that a server that is sent the prompt as text sees what training saw.
Weights are merged in float32, then stored in the base's number format; what lies on disk is read again and compared
with the adapter on its base, and the difference stands in the card.

Not covered: GGUF. The package `gguf` has the file format and no converter from a transformers model, and llama.cpp's
own converter knows vocabularies by hash; see `docs/models.md`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import peft
import torch
from transformers import AutoConfig, GenerationConfig, PreTrainedModel

from plansmith import __version__
from plansmith.contract.catalog import Catalog
from plansmith.contract.errors import InputError, PlansmithError
from plansmith.contract.plan import Plan
from plansmith.contract.progress import Progress
from plansmith.contract.prompt import (
    PROMPT_VERSION,
    encode_prompt,
    encode_target,
    ids_digest,
    prompt_hash,
    render,
    stop_id,
)
from plansmith.contract.store import file_hash, write_text
from plansmith.data.build import DataSet
from plansmith.training.checkpoint import Card, read_card
from plansmith.training.export_card import ExportCard, Form, Parity, PromptProbe, Weights
from plansmith.training.files import (
    CARD_NAME,
    TERMS_FILES,
    copy_files,
    hash_files,
    replace_directory,
    require_replaceable,
)
from plansmith.training.model import base_hash, load_model, load_tokenizer, quiet
from plansmith.training.model_card import licence_of, model_card, read_scores

_TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "tokenizer.model"),
    *("vocab.json", "merges.txt", "chat_template.jinja"),
)
_ADAPTER_FILES = ("adapter_model.safetensors", "adapter_config.json")
_SAMPLES = 4
_PROBE_QUERY = "Is it ready?"
_TOLERANCE = 1e-4
"""Largest difference of a logit in float32, as a share of the largest logit."""


class ParityError(PlansmithError):
    """The merged model gives other logits than the adapter on its base, so it is not kept."""


@dataclass(frozen=True)
class Source:
    """What is exported."""

    base: Path
    adapter: Path
    data: DataSet
    report: Path | None = None
    """`report.json` of an evaluation of this adapter."""


class Exported(NamedTuple):
    """A finished export."""

    folder: Path
    card: ExportCard
    notes: tuple[str, ...]
    """What the user should know: scores left out, files not taken along."""


def export(
    source: Source, to: Path, form: Form = Form.MERGED, weights: Weights = Weights.AUTO, *, progress: Progress
) -> Exported:
    """Write an export, in place of nothing or of an earlier, unchanged one.

    Raises:
        InputError: base, adapter and data do not belong together, or something else is in the way.
        ParityError: the merged model is not the adapter on its base; nothing is written.
        StorageError: it cannot be written; an earlier export is still there.

    """
    target = to.resolve()
    require_replaceable(target, CARD_NAME, "export")
    card = _require_fitting(source)
    scores = read_scores(source.report, file_hash(source.adapter / _ADAPTER_FILES[0]))
    notes = [scores.note] if scores.note else []
    written: list[ExportCard] = []

    def build(draft: Path) -> None:
        dtype, parity = "float32", None
        if form is Form.ADAPTER:
            _copy_adapter(source.adapter, draft, _base_name(card))
        else:
            progress.note("export: merging the adapter into its base")
            dtype, parity = _write_merged(source, draft, weights, progress)
            notes.extend(_left_behind(source.base, draft))
        copy_files(source.base, draft, TERMS_FILES)
        source.data.catalog.save(draft / "catalog.json")
        found = _card(source, card, form, dtype, parity, load_tokenizer(draft if form is Form.MERGED else source.base))
        write_text(draft / "README.md", model_card(found, target.name, scores))
        found = found.model_copy(update={"files": hash_files(draft)})
        write_text(draft / CARD_NAME, found.model_dump_json(indent=1) + "\n")
        written.append(found)

    replace_directory(target, build)
    return Exported(target, written[0], tuple(notes))


def write_scores(folder: Path, report: Path) -> str:
    """Write an export's model card anew, with the scores of a report made after it; returns why not, empty where done.

    Raises:
        StorageError: it cannot be written; the card is as it was.

    """
    card = ExportCard.model_validate_json((folder / CARD_NAME).read_text(encoding="utf-8"))
    scores = read_scores(report, card.adapter_hash)
    if scores.note:
        return scores.note
    text = model_card(card.model_copy(update={"files": {}}), folder.name, scores)
    if (folder / "README.md").read_text(encoding="utf-8") == text:
        return ""
    if file_hash(folder / "README.md") != card.files.get("README.md"):
        return "README.md was changed by hand, so the scores of the new report are not written into it"

    def build(draft: Path) -> None:
        for path in folder.iterdir():
            if path.name not in ("README.md", CARD_NAME):
                draft.joinpath(path.name).hardlink_to(path)
        write_text(draft / "README.md", text)
        files = card.files | {"README.md": file_hash(draft / "README.md")}
        write_text(draft / CARD_NAME, card.model_copy(update={"files": files}).model_dump_json(indent=1) + "\n")

    replace_directory(folder, build)
    return ""


def _require_fitting(source: Source) -> Card:
    """The adapter's card, where base, catalog, prompt and data are those that it names."""
    card = read_card(source.adapter)
    if card is None:
        raise InputError(f"{str(source.adapter)!r} holds no finished adapter. Run: plansmith train --config FILE")
    catalog = source.data.catalog
    catalog.require_hash(card.catalog_hash, what=f"adapter {str(source.adapter)!r}")
    pairs = {
        "base model": (card.base_hash, base_hash(source.base)),
        "prompt": (card.prompt_hash, prompt_hash(catalog)),
        "training data": (card.data.get("train.jsonl"), source.data.manifest.files.get("train.jsonl")),
    }
    wrong = [f"{name}: {trained} then, {found} now" for name, (trained, found) in pairs.items() if trained != found]
    if wrong:
        raise InputError(
            f"adapter {str(source.adapter)!r} was trained with another input than is here now ({'; '.join(wrong)}). "
            "Train again, or give back what it was trained with."
        )
    return card


def _base_name(card: Card) -> str:
    """The base's name, without the folders of the machine that it was trained on."""
    return Path(card.base).name if "/" in card.base else card.base


def _copy_adapter(adapter: Path, draft: Path, base: str) -> None:
    shutil.copyfile(adapter / _ADAPTER_FILES[0], draft / _ADAPTER_FILES[0])
    settings = json.loads((adapter / _ADAPTER_FILES[1]).read_text(encoding="utf-8"))
    settings["base_model_name_or_path"] = base
    write_text(draft / _ADAPTER_FILES[1], json.dumps(settings, indent=1) + "\n")


def _write_merged(source: Source, draft: Path, weights: Weights, progress: Progress) -> tuple[str, Parity]:
    """Merged weights, tokenizer and generation config; read again and compared."""
    samples = _samples(source)
    tokenizer = load_tokenizer(source.base)
    with quiet():
        model = load_model(source.base, torch.float32)
        wrapped = peft.PeftModel.from_pretrained(model, str(source.adapter), is_trainable=False)
        before = [_plan_logits(wrapped, sample) for sample in samples]
        merged: Any = cast("Any", wrapped).merge_and_unload(safe_merge=True)
        dtype = _stored_dtype(source.base) if weights is Weights.AUTO else getattr(torch, weights.value)
        merged.to(dtype)
        merged.config.dtype = dtype
        merged.generation_config = generation_config(source.base, tokenizer)
        merged.save_pretrained(draft)
        del model, wrapped, merged
        copy_files(source.base, draft, _TOKENIZER_FILES)
        if _add_bos(draft, tokenizer):
            progress.note("export: the tokenizer now puts bos in front of a text, as training did")
        again = load_model(draft, torch.float32)
    parity = _compare(before, [_plan_logits(again, sample) for sample in samples], exact=dtype is torch.float32)
    return str(dtype).removeprefix("torch."), parity


def _add_bos(draft: Path, tokenizer: Any) -> bool:
    """Have the exported tokenizer put bos in front of a text, where training did and the base's own would not."""
    bos = tokenizer.bos_token_id
    if tokenizer.chat_template or bos is None or tokenizer.encode("a")[:1] == [bos]:
        return False
    path = draft / "tokenizer.json"
    spec = json.loads(path.read_text(encoding="utf-8"))
    token = str(tokenizer.bos_token)
    first, rest = {"SpecialToken": {"id": token, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    adding = {
        "type": "TemplateProcessing",
        "single": [first, rest],
        "pair": [first, rest, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {token: {"id": token, "ids": [bos], "tokens": [token]}},
    }
    before = spec.get("post_processor")
    spec["post_processor"] = {"type": "Sequence", "processors": [before, adding]} if before else adding
    write_text(path, json.dumps(spec, ensure_ascii=False))
    return True


def generation_config(base: Path, tokenizer: Any) -> GenerationConfig:
    """Greedy decoding that ends where training ended its plans, or where the base's own chats end.

    Nothing else of the base's config is kept: a penalty on repetition or a temperature that suits chats spoils plans,
    and servers apply it without a word.
    """
    return GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=stop_ids(base, tokenizer),
        do_sample=False,
    )


def stop_ids(base: Path, tokenizer: Any) -> list[int]:
    """The id that training ended plans with, then those that the base's generation config adds."""
    if (base / "generation_config.json").is_file():
        value = GenerationConfig.from_pretrained(base, local_files_only=True).eos_token_id
    else:
        value = AutoConfig.from_pretrained(base, local_files_only=True, trust_remote_code=False).eos_token_id
    listed = value if isinstance(value, list) else [] if value is None else [value]
    return list(dict.fromkeys([stop_id(tokenizer), *listed]))


class _Sample(NamedTuple):
    prompt: list[int]
    plan: list[int]


def _samples(source: Source) -> list[_Sample]:
    tokenizer, catalog = load_tokenizer(source.base), source.data.catalog
    samples: list[_Sample] = []
    for row in source.data.train[:_SAMPLES]:
        ids = encode_prompt(row.query, catalog, tokenizer)
        plan = encode_target(Plan.from_json(row.plan).canonical(catalog), tokenizer)
        samples.append(_Sample([*ids.prefix, *ids.suffix], plan))
    return samples


def _plan_logits(model: PreTrainedModel | peft.PeftModel, sample: _Sample) -> torch.Tensor:
    """Logits that predict the tokens of the plan."""
    ids = torch.tensor([[*sample.prompt, *sample.plan]])
    with torch.no_grad():
        return cast("Any", model.eval())(ids, logits_to_keep=len(sample.plan) + 1).logits[0, :-1].float()


def _compare(before: Sequence[torch.Tensor], after: Sequence[torch.Tensor], *, exact: bool) -> Parity:
    difference = max((float((a - b).abs().max()) for a, b in zip(before, after, strict=True)), default=0.0)
    largest = max((float(logits.abs().max()) for logits in before), default=1.0)
    most = _TOLERANCE * max(1.0, largest)
    if exact and not difference <= most:
        raise ParityError(
            f"a logit of the merged model differs by {difference:.2e} from that of the adapter on its base, at most "
            f"{most:.2e} was expected. An adapter on tied embeddings cannot be merged; export it with --form adapter."
        )
    return Parity(
        texts=len(before),
        places=sum(len(logits) for logits in before),
        logit_difference=difference,
        same_token=sum(int((a.argmax(-1) == b.argmax(-1)).sum()) for a, b in zip(before, after, strict=True)),
    )


def _stored_dtype(base: Path) -> torch.dtype:
    """Number format of the base's weights, by its config; float32 where that does not say."""
    config = json.loads((base / "config.json").read_text(encoding="utf-8"))
    name = config.get("dtype") or config.get("torch_dtype") or "float32"
    return getattr(torch, str(name))


def _left_behind(base: Path, draft: Path) -> list[str]:
    ours = {"README.md", CARD_NAME, "trimmed.json", "model.safetensors.index.json"}
    names = sorted(
        path.name
        for path in base.iterdir()
        if path.suffix != ".safetensors" and path.name not in ours and not (draft / path.name).exists()
    )
    names = [name for name in names if not any(Path(name).match(pattern) for pattern in TERMS_FILES)]
    return [f"not taken along from the base: {', '.join(names)}"] if names else []


def _card(source: Source, card: Card, form: Form, dtype: str, parity: Parity | None, tokenizer: Any) -> ExportCard:
    ids = stop_ids(source.base, tokenizer)
    name = _base_name(card)
    manifest, catalog = source.data.manifest, source.data.catalog
    text_prompt = _text_is_enough(source, tokenizer)
    return ExportCard(
        form=form,
        plansmith=__version__,
        base=name,
        base_hash=card.base_hash,
        base_terms=card.base_terms,
        base_licence=licence_of(source.base),
        catalog_name=catalog.name,
        catalog_hash=catalog.hash,
        prompt_hash=card.prompt_hash,
        prompt_version=PROMPT_VERSION,
        prompt="chat" if tokenizer.chat_template else "plain",
        text_prompt=text_prompt,
        probe=_probe(catalog, tokenizer) if text_prompt else None,
        stop_tokens={str(tokenizer.convert_ids_to_tokens(index)): index for index in ids},
        data=manifest.files,
        data_source=manifest.source,
        data_licence=manifest.licence,
        adapter_hash=file_hash(source.adapter / _ADAPTER_FILES[0]),
        dtype=dtype,
        parity=parity,
        training=card.model_copy(update={"base": name, "inputs": card.inputs.model_copy(update={"base": name})}),
        files={},
    )


def _probe(catalog: Catalog, tokenizer: Any) -> PromptProbe:
    ids = encode_prompt(_PROBE_QUERY, catalog, tokenizer)
    whole = [*ids.prefix, *ids.suffix]
    return PromptProbe(query=_PROBE_QUERY, tokens=len(whole), digest=ids_digest(whole), first=tuple(whole[:8]))


def _text_is_enough(source: Source, tokenizer: Any) -> bool:
    """Whether the plain prompt as text, encoded the way servers do, gives the tokens that training saw."""
    catalog = source.data.catalog
    for row in source.data.train[:_SAMPLES]:
        prompt, ids = render(row.query, catalog), encode_prompt(row.query, catalog, tokenizer)
        if tokenizer.encode(prompt.prefix + prompt.suffix) != [*ids.prefix, *ids.suffix]:
            return False
    return True
