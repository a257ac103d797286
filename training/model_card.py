"""The model card: a `README.md` that says what an exported planner is, on what it was trained, and how good it is.

Reads the export's card, the base's own card (its licence), and an evaluation's `report.json`; gives Markdown with the
YAML front matter that model hubs read. Names and texts that come from elsewhere are escaped. Scores are those of a
report of this very adapter; a report of another one is left out, and that is said.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from plansmith.contract.errors import InputError
from plansmith.training.export_card import ExportCard

_METRICS = {"valid": "valid", "equivalent": "right", "worker_f1": "worker F1", "argument_f1": "argument F1"}
_REPORT_VERSION = 2
_KEPT_SETTINGS = ("rank", "alpha", "dropout", "target_modules", "top_layers", "steps", "batch_size", "learning_rate")


class Score(NamedTuple):
    """One system on one part of the test set."""

    system: str
    part: str
    items: int
    values: tuple[str, ...]
    """Of each metric, with its 95% interval."""


class Scores(NamedTuple):
    """What an evaluation measured of the adapter."""

    rows: tuple[Score, ...]
    machine: str = ""
    note: str = ""
    """Why there are none."""


def read_scores(report: Path | None, adapter_hash: str) -> Scores:
    """The scores of a `report.json`, where it was made of this adapter.

    Raises:
        InputError: the file is no report.

    """
    if report is None or not report.is_file():
        return Scores((), note="no report.json, so the model card has no scores; run plansmith eval first")
    try:
        value = json.loads(report.read_text(encoding="utf-8"))
        if value["version"] != _REPORT_VERSION:
            return Scores((), note=f"{report.name} is of version {value['version']}, so its scores are left out")
        if value["meta"]["data_hashes"].get("adapter") != adapter_hash:
            return Scores((), note=f"{report.name} is of another adapter, so its scores are left out")
        rows = tuple(_rows(value["systems"], value["parts"]))
        return Scores(rows, value["meta"]["machine"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{str(report)!r} is no report of this version: {type(error).__name__} {error}.") from error


def _rows(systems: Sequence[dict[str, Any]], parts: Sequence[str]) -> Iterable[Score]:
    for system in systems:
        for part in ("overall", *(part for part in parts if part != "overall")):
            found = system["parts"].get(part)
            if found is not None:
                values = tuple(_metric(found["metrics"].get(name)) for name in _METRICS)
                yield Score(system["system"], part, found["items"], values)


def _metric(value: dict[str, Any] | None) -> str:
    if value is None or value["value"] is None:
        return "-"
    return f"{100 * value['value']:.1f} ({100 * value['low']:.1f} to {100 * value['high']:.1f})"


def licence_of(base: Path) -> str | None:
    """Licence that the base's own card states in its head; None where there is no card or it states none."""
    page = base / "README.md"
    if not page.is_file():
        return None
    _, _, rest = page.read_text(encoding="utf-8", errors="replace").partition("---\n")
    head, found, _ = rest.partition("\n---")
    try:
        value = yaml.safe_load(head) if found else None
    except yaml.YAMLError:
        return None
    licence = value.get("license") if isinstance(value, dict) else None
    return " ".join(str(licence).split()) if licence else None


def model_card(card: ExportCard, name: str, scores: Scores) -> str:
    """The whole `README.md` of an export whose folder has this name."""
    front: dict[str, Any] = {
        "library_name": "peft" if card.form.value == "adapter" else "transformers",
        "pipeline_tag": "text-generation",
        "base_model": card.base,
        "tags": ["planning", "tool-use", "function-calling", "plansmith"],
        **_licence(card),
    }
    head = yaml.safe_dump(front, sort_keys=False, allow_unicode=True)
    sections = [
        f"# {_plain(name)}",
        _summary(card),
        _terms(card),
        _serving(card, name),
        _scores(scores),
        _training(card),
        _made(card),
    ]
    return f"---\n{head}---\n\n" + "\n\n".join(sections) + "\n"


def _licence(card: ExportCard) -> dict[str, str]:
    if card.base_licence:
        return {"license": card.base_licence}
    return {"license": "other", "license_name": "gemma" if card.base_terms else "not-stated"}


def _summary(card: ExportCard) -> str:
    what = "A LoRA adapter" if card.form.value == "adapter" else "A model"
    return (
        f"{what} that turns a query into a plan: a JSON array of calls to the workers of one catalog. It was made for "
        f"the catalog `{_code(card.catalog_name)}` (`catalog.json`, hash `{card.catalog_hash}`), and plansmith refuses "
        "to use it with another one. Its output is a draft: check it (`plansmith check`) before anything is run."
    )


def _terms(card: ExportCard) -> str:
    licence = f"licence `{_code(card.base_licence)}`" if card.base_licence else "its own card states no licence here"
    terms = f" {_plain(card.base_terms)}." if card.base_terms else ""
    data = f"`{_code(card.data_licence)}`" if card.data_licence else "not given"
    return (
        "## Base, data and their terms\n\n"
        f"Base model: `{_code(card.base)}`, {licence}.{terms} Hash of the base used: `{card.base_hash}`.\n\n"
        f"Training data: {_plain(card.data_source)}, licence {data}.\n\n"
        + _table(("file", "sha256"), [(f"`{_code(file)}`", f"`{value}`") for file, value in card.data.items()])
        + "\n\nWho passes this model on passes it on under the base's terms, and names the data's."
    )


def _serving(card: ExportCard, name: str) -> str:
    plain = _code(name)
    stop = ", ".join(f"`{_code(token)}` ({index})" for token, index in card.stop_tokens.items())
    if card.form.value == "adapter":
        server = f"vllm serve BASE --enable-lora --max-lora-rank {_rank(card)} --lora-modules {plain}={plain}"
        local = f"--planner BASE --adapter {plain}"
        base = (
            "`BASE` is the folder of the base with the hash above. The adapter changes no embeddings, so the base "
            "before its vocabulary was trimmed serves as well.\n\n"
        )
    else:
        server = f"vllm serve {plain} --served-model-name {plain}"
        local = f"--planner {plain}"
        base = ""
    plan = f"--model {'BASE --adapter ' if card.form.value == 'adapter' else ''}{plain}"
    return (
        f"## Using it\n\n{base}On this machine, without a server:\n\n"
        f'    plansmith plan "QUERY" {plan} --catalog {plain}/catalog.json\n'
        f"    plansmith eval --examples test.jsonl --catalog {plain}/catalog.json --name trial {local}\n\n"
        f"With vLLM:\n\n    {server}\n\n{_asking(card, name)}\n\n"
        f"Plans end with {stop}; decoding is greedy. The prompt is rendered by plansmith (version "
        f"{card.prompt_version}, {'in the chat template' if card.prompt == 'chat' else 'plain text after bos'}); no "
        "system message, no other instruction."
    )


def _asking(card: ExportCard, name: str) -> str:
    """How the served model is asked so that it sees the prompt of training."""
    if not card.text_prompt:
        return (
            "Ask the endpoint with token ids, since text alone would become other tokens than those of training: "
            "`OpenAIPlanner(EndpointConfig(url=..., model=..., route='completions'), tokenizer=AutoTokenizer"
            ".from_pretrained(...))` of `plansmith.serving` sends them."
        )
    plain = json.dumps(_line(name))
    return (
        "and as `served.yaml` for `plansmith eval --config served.yaml`:\n\n"
        "    name: served\n    examples: test.jsonl\n"
        f"    catalog: {json.dumps(_line(name) + '/catalog.json')}\n    eval:\n      systems:\n"
        "        - kind: openai\n          name: served\n          constrained: true\n"
        f"          endpoint: {{url: http://localhost:8000/v1, model: {plain}, route: completions}}\n\n"
        "The route matters: the chat route would wrap the prompt in words that training never saw."
    )


def _rank(card: ExportCard) -> int:
    return int(card.training.inputs.config.get("rank", 16))


def _scores(scores: Scores) -> str:
    if not scores.rows:
        return "## Measured\n\nNothing was measured of this model yet."
    rows = [(f"`{_code(r.system)}`", _plain(r.part), r.items, *r.values) for r in scores.rows]
    return (
        "## Measured\n\nOn the run's test set, per cent with 95% intervals; `base` is the model before training, "
        "`tuned` this one, `grammar` decodes under the plan grammar.\n\n"
        + _table(("system", "part", "items", *_METRICS.values()), rows)
        + f"\n\nMeasured on: {_plain(scores.machine)}."
    )


def _training(card: ExportCard) -> str:
    training = card.training
    config = training.inputs.config
    rows = [(name.replace("_", " "), _plain(_text(config[name]))) for name in _KEPT_SETTINGS if name in config]
    rows += [
        ("seed", str(training.seed)),
        ("rows trained on", f"{training.examples} of {training.given}"),
        ("loss of the last step", f"{training.final_loss:.4f} nats a token"),
        ("time", f"{training.seconds:.0f} s"),
    ]
    return "## Training\n\nLoRA on the tokens of the plan.\n\n" + _table(("setting", "value"), rows)


def _text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _made(card: ExportCard) -> str:
    text = f"## How it was made\n\nBy plansmith {card.plansmith}, weights in {card.dtype}."
    if card.parity is None:
        return f"{text} The weights are those that training wrote (sha256 `{card.adapter_hash}`)."
    parity = card.parity
    return (
        f"{text} Merged from the adapter with sha256 `{card.adapter_hash}`. Read again from disk and compared with the "
        f"adapter on its base over {parity.places} places in the plans of {parity.texts} training rows: largest "
        f"difference of a logit {parity.logit_difference:.1e}, the same likeliest token at {parity.same_token}."
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'|'.join(' --- ' for _ in head)}|"]
    return "\n".join([*lines, *(f"| {' | '.join(map(str, row))} |" for row in rows)])


def _plain(text: str) -> str:
    """Text that Markdown and HTML leave as it is, on one line."""
    for mark in ("\\", "|", "`", "*", "_", "[", "]", "#"):
        text = text.replace(mark, f"\\{mark}")
    return _line(text.replace("&", "&amp;").replace("<", "&lt;"))


def _code(text: str) -> str:
    """Text for a code span inside a table."""
    return _line(text.replace("`", "'").replace("|", "\\|"))


def _line(text: str) -> str:
    """Text on one line: a line of dashes would end the front matter."""
    return " ".join(text.split())
