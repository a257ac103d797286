"""Examples to token ids, and everything that must be refused before the first step.

Takes verified examples, their catalog and the tokenizer; gives the shared prefix and one `Encoded` an example. The
ids are those of `plansmith.contract.prompt`, which server and evaluator call too.

Each check here stands for a way in which training goes wrong without a word: cut targets, a stop token that is never
learnt, targets that the loss does not see, prompts that differ from those at serving time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from plansmith.contract.catalog import Catalog
from plansmith.contract.errors import InputError
from plansmith.contract.plan import Plan
from plansmith.contract.progress import Progress
from plansmith.contract.prompt import encode_prompt, encode_target, render, stop_id
from plansmith.contract.records import Example
from plansmith.data.build import DataSet
from plansmith.training.config import TooLong, TrainingConfig
from plansmith.training.prefix import Encoded


class Corpus(NamedTuple):
    """What the loss sees of a data set."""

    prefixes: list[list[int]]
    """Token ids that the examples of one catalog share: bos, instruction, catalog. The data set's own comes first."""
    catalogs: list[Catalog]
    """The catalog of each prefix."""
    groups: list[int]
    """Which of them each example is for."""
    examples: list[Encoded]
    names: list[str]
    """Id of each example's row."""
    rows: list[Example]
    """Each example's row."""
    given: int
    """Rows that came in; `given == len(examples) + sum(dropped.values())`."""
    dropped: dict[str, int]
    """Rows left out, by reason."""

    @property
    def prefix(self) -> list[int]:
        """The prefix of the data set's own catalog."""
        return self.prefixes[0]

    @property
    def lengths(self) -> list[int]:
        """Tokens of each example after its prefix."""
        return [len(example.ids) for example in self.examples]

    def prefix_of(self, index: int) -> list[int]:
        """The prefix of an example."""
        return self.prefixes[self.groups[index]]

    def catalog_of(self, index: int) -> Catalog:
        """The catalog of an example."""
        return self.catalogs[self.groups[index]]


def texts_of(data: DataSet) -> Iterator[str]:
    """Every text that training encodes, each as it is encoded: prompt prefix, queries with their frame, plans."""
    for catalog in (data.catalog, *data.catalogs.values()):
        yield render("", catalog).prefix
    for example in (*data.train, *data.val):
        yield render(example.query, data.catalog).suffix
        yield Plan.from_json(example.plan).canonical(data.catalog_of(example))


def encode_examples(
    examples: Sequence[Example],
    catalog: Catalog,
    tokenizer: Any,
    config: TrainingConfig,
    progress: Progress,
    *,
    catalogs: Mapping[str, Catalog] = MappingProxyType({}),
) -> Corpus:
    """Encode rows and check them.

    Args:
        examples: rows of training.
        catalog: the data set's own.
        tokenizer: the base model's.
        config: how long an example may be.
        progress: told of rows that are left out.
        catalogs: the changed catalogs that rows may be for, by hash.

    Raises:
        InputError: no row is left, one is too long and the config says stop, or a check fails; the message counts the
            rows and names the first.

    """
    stop = stop_id(tokenizer)
    used = [catalog, *(catalogs[name] for name in dict.fromkeys(row.catalog for row in examples) if name is not None)]
    prefixes = [encode_prompt("", one, tokenizer).prefix for one in used]
    places = {one.hash: place for place, one in reversed([*enumerate(used)])}
    groups: list[int] = []
    kept: list[Encoded] = []
    names: list[str] = []
    rows: list[Example] = []
    long: list[tuple[str, int]] = []
    for example in examples:
        group = 0 if example.catalog is None else places[example.catalog]
        encoded = encode_example(example, used[group], tokenizer, prefixes[group])
        length = len(prefixes[group]) + len(encoded.ids)
        if length > config.max_tokens:
            long.append((example.id, length))
        else:
            groups.append(group)
            kept.append(encoded)
            names.append(example.id)
            rows.append(example)
    corpus = Corpus(prefixes, used, groups, kept, names, rows, len(examples), dict(Counter("too_long" for _ in long)))
    if long:
        _report_long(long, len(examples), config, progress)
    check_corpus(corpus, stop)
    return corpus


def encode_example(example: Example, catalog: Catalog, tokenizer: Any, prefix: list[int]) -> Encoded:
    """One row's query and plan after the shared prefix.

    Raises:
        InputError: the row's prompt does not start with the prefix, or the tokenizer cannot write the plan.

    """
    prompt = encode_prompt(example.query, catalog, tokenizer)
    if prompt.prefix != prefix:
        at = next((i for i, (a, b) in enumerate(zip(prompt.prefix, prefix, strict=False)) if a != b), len(prefix))
        raise InputError(
            f"the prompt of row {example.id!r} leaves the shared prefix at token {at} of {len(prefix)}; "
            "the prompt before the query must not depend on the query."
        )
    text = Plan.from_json(example.plan).canonical(catalog)
    target = encode_target(text, tokenizer)
    written = tokenizer.decode(target[:-1], clean_up_tokenization_spaces=False)
    if written != text:
        raise InputError(
            f"the tokenizer cannot write the plan of row {example.id!r}: {text!r} comes back as {written!r}. "
            "Use another base model."
        )
    return Encoded(prompt.suffix + target, len(prompt.suffix), [1.0] * len(target))


def _report_long(long: list[tuple[str, int]], given: int, config: TrainingConfig, progress: Progress) -> None:
    name, length = long[0]
    found = f"{len(long)} of {given} rows have more than {config.max_tokens} tokens (row {name!r}: {length})"
    if config.too_long is TooLong.STOP:
        raise InputError(f"{found}; their plans would be cut. Raise training.max_tokens, or set too_long to drop.")
    progress.note(f"training: {found}; left out")


def check_corpus(corpus: Corpus, stop: int) -> None:
    """Refuse what could not be learnt.

    Raises:
        InputError: rows were lost uncounted, none is left, or some have no target, a target that the loss does not
            see, or one that does not end with the stop token.

    """
    if corpus.given != len(corpus.examples) + sum(corpus.dropped.values()):
        raise InputError(
            f"{corpus.given} rows came in, but {len(corpus.examples)} were kept and "
            f"{sum(corpus.dropped.values())} dropped; some were lost uncounted."
        )
    if not corpus.examples:
        dropped = ", ".join(f"{reason} {count}" for reason, count in corpus.dropped.items()) or "none given"
        raise InputError(f"there is no row to train on (dropped: {dropped}).")
    faults = [_fault(example, stop) for example in corpus.examples]
    for fault, count in Counter(fault for fault in faults if fault).items():
        name = corpus.names[faults.index(fault)]
        raise InputError(f"{count} of {len(faults)} rows {fault} (row {name!r}); nothing was trained.")


def _fault(example: Encoded, stop: int) -> str | None:
    """What is wrong with one row, in words that follow `rows`."""
    target = example.ids[example.num_query :]
    if not target or not any(example.weights):
        return "have no target token that the loss sees"
    if len(example.weights) != len(target):
        return "have other numbers of weights and of target tokens"
    if not example.num_query:
        return "have no query token before the plan"
    if target[-1] != stop:
        return f"do not end with the stop token {stop}, so the model would never learn to stop"
    if not example.weights[-1]:
        return f"have a stop token {stop} that the loss does not see, so the model would never learn to stop"
    return None
