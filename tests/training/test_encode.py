"""Everything that training refuses before its first step, each with the fault planted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plansmith.contract.catalog import Catalog
from plansmith.contract.errors import InputError
from plansmith.contract.plan import Plan
from plansmith.contract.progress import Silent
from plansmith.contract.prompt import encode_prompt, encode_target
from plansmith.contract.records import Example
from plansmith.data.build import DataSet
from plansmith.training.config import TooLong, TrainingConfig
from plansmith.training.encode import Corpus, check_corpus, encode_example, encode_examples, texts_of
from plansmith.training.model import check_tokenizer, load_tokenizer
from plansmith.training.prefix import Encoded

CONFIG = TrainingConfig()


@pytest.fixture(scope="module")
def tokenizer(base: Path) -> Any:
    return load_tokenizer(base)


@pytest.fixture(scope="module")
def corpus(data: DataSet, tokenizer: Any) -> Corpus:
    return encode_examples(data.train, data.catalog, tokenizer, CONFIG, Silent())


class Notes(Silent):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def broken(corpus: Corpus, number: int, **change: Any) -> Corpus:
    examples = list(corpus.examples)
    examples[number] = examples[number]._replace(**change)
    return corpus._replace(examples=examples)


def test_rows_become_the_ids_of_the_contract(corpus: Corpus, data: DataSet, tokenizer: Any) -> None:
    row, encoded = data.train[0], corpus.examples[0]
    prompt = encode_prompt(row.query, data.catalog, tokenizer)
    target = encode_target(Plan.from_json(row.plan).canonical(data.catalog), tokenizer)
    assert corpus.prefix == prompt.prefix
    assert encoded.ids == prompt.suffix + target
    assert encoded.ids[: encoded.num_query] == prompt.suffix
    assert encoded.weights == [1.0] * len(target)
    assert encoded.ids[-1] == tokenizer.eos_token_id
    assert len(corpus.examples) == corpus.given == 16


def test_changing_a_query_changes_no_target(data: DataSet, corpus: Corpus, tokenizer: Any) -> None:
    row = data.train[0].model_copy(update={"query": "something else entirely"})
    encoded = encode_example(row, data.catalog, tokenizer, corpus.prefix)
    before = corpus.examples[0]
    assert encoded.ids[encoded.num_query :] == before.ids[before.num_query :]
    assert encoded.weights == before.weights


def test_rows_that_are_too_long_are_dropped_and_counted(data: DataSet, corpus: Corpus, tokenizer: Any) -> None:
    lengths = sorted(len(corpus.prefix) + len(example.ids) for example in corpus.examples)
    notes = Notes()
    config = TrainingConfig(max_tokens=lengths[9])
    found = encode_examples(data.train, data.catalog, tokenizer, config, notes)
    kept = sum(length <= lengths[9] for length in lengths)
    assert len(found.examples) == len(found.names) == kept
    assert found.dropped == {"too_long": 16 - kept}
    assert f"{16 - kept} of 16 rows have more than {lengths[9]} tokens" in notes.notes[0]


def test_rows_that_are_too_long_stop_training_where_the_config_says_so(data: DataSet, tokenizer: Any) -> None:
    config = TrainingConfig(max_tokens=64, too_long=TooLong.STOP)
    with pytest.raises(InputError, match=r"16 of 16 rows have more than 64 tokens \(row 'row-0': \d+\).*would be cut"):
        encode_examples(data.train, data.catalog, tokenizer, config, Silent())


def test_no_row_left_is_refused(data: DataSet, tokenizer: Any) -> None:
    with pytest.raises(InputError, match=r"no row to train on \(dropped: too_long 16\)"):
        encode_examples(data.train, data.catalog, tokenizer, TrainingConfig(max_tokens=64), Silent())
    with pytest.raises(InputError, match="none given"):
        encode_examples([], data.catalog, tokenizer, CONFIG, Silent())


def test_a_row_lost_uncounted_is_refused(corpus: Corpus) -> None:
    with pytest.raises(InputError, match=r"17 rows came in, but 16 were kept and 0 dropped"):
        check_corpus(corpus._replace(given=17), stop=1)


def test_a_target_that_does_not_end_with_the_stop_token_is_refused(corpus: Corpus) -> None:
    example = corpus.examples[3]
    fault = broken(corpus, 3, ids=example.ids[:-1], weights=example.weights[:-1])
    with pytest.raises(InputError, match=r"1 of 16 rows do not end with the stop token 1.*'row-3'"):
        check_corpus(fault, stop=1)


def test_a_stop_token_that_the_loss_does_not_see_is_refused(corpus: Corpus) -> None:
    fault = broken(corpus, 3, weights=[*corpus.examples[3].weights[:-1], 0.0])
    with pytest.raises(InputError, match=r"1 of 16 rows have a stop token 1 that the loss does not see.*'row-3'"):
        check_corpus(fault, stop=1)


def test_a_row_without_targets_is_refused(corpus: Corpus) -> None:
    example = corpus.examples[2]
    with pytest.raises(InputError, match=r"1 of 16 rows have no target token"):
        check_corpus(broken(corpus, 2, ids=example.ids[: example.num_query], weights=[]), stop=1)
    with pytest.raises(InputError, match=r"1 of 16 rows have no target token"):
        check_corpus(broken(corpus, 2, weights=[0.0] * len(example.weights)), stop=1)


def test_weights_that_do_not_match_the_targets_are_refused(corpus: Corpus) -> None:
    with pytest.raises(InputError, match="other numbers of weights"):
        check_corpus(broken(corpus, 0, weights=[1.0]), stop=1)
    with pytest.raises(InputError, match="no query token"):
        check_corpus(broken(corpus, 0, num_query=0, weights=[1.0] * len(corpus.examples[0].ids)), stop=1)


def test_a_prompt_that_leaves_the_shared_prefix_is_refused(data: DataSet, corpus: Corpus, tokenizer: Any) -> None:
    prefix = [*corpus.prefix[:5], corpus.prefix[5] + 1, *corpus.prefix[6:]]
    with pytest.raises(InputError, match=r"row 'row-0' leaves the shared prefix at token 5 of"):
        encode_example(data.train[0], data.catalog, tokenizer, prefix)


def test_a_tokenizer_without_a_stop_token_is_refused(data: DataSet, base: Path) -> None:
    tokenizer = load_tokenizer(base)
    tokenizer.eos_token = None
    with pytest.raises(InputError, match="no eos token"):
        encode_examples(data.train, data.catalog, tokenizer, CONFIG, Silent())


def test_a_tokenizer_that_cannot_write_a_plan_is_refused(data: DataSet, corpus: Corpus, base: Path) -> None:
    tokenizer = load_tokenizer(base)
    kept = tokenizer.backend_tokenizer.normalizer
    from tokenizers import normalizers

    tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()
    assert kept is None
    row = data.train[0]
    prefix = encode_prompt(row.query, data.catalog, tokenizer).prefix
    with pytest.raises(InputError, match=r"cannot write the plan of row 'row-0'.*comes back as.*oslo"):
        encode_example(row, data.catalog, tokenizer, prefix)


def test_a_tokenizer_that_changes_text_is_refused(base: Path, tmp_path: Path) -> None:
    from tokenizers import normalizers

    tokenizer = load_tokenizer(base)
    tokenizer.backend_tokenizer.normalizer = normalizers.NFKC()
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_bytes((base / "config.json").read_bytes())
    check_tokenizer(base)
    tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(InputError, match="changes text"):
        check_tokenizer(tmp_path)


def test_the_texts_of_a_data_set_are_those_that_are_encoded(data: DataSet, corpus: Corpus, tokenizer: Any) -> None:
    used = {index for example in corpus.examples for index in example.ids[:-1]} | set(corpus.prefix[1:])
    given = {index for text in texts_of(data) for index in tokenizer.encode(text, add_special_tokens=False)}
    assert used == given


def test_a_row_of_another_catalog_has_another_prefix(
    data: DataSet, corpus: Corpus, tokenizer: Any, rows: list[Example]
) -> None:
    other = Catalog("other", data.catalog.workers[:1])
    with pytest.raises(InputError, match="leaves the shared prefix"):
        encode_example(rows[0], other, tokenizer, corpus.prefix)


def test_an_encoded_row_names_its_parts() -> None:
    assert Encoded([1, 2, 3], 1, [1.0, 1.0]).num_query == 1
