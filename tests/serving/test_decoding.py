"""One row's bookkeeping (limit, stop, forced tokens) and the packed attention against a plain one."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import Tensor, nn

from plansmith.contract.catalog import Catalog
from plansmith.contract.records import FinishReason
from plansmith.serving.decoding import Row
from plansmith.serving.grammar_masks import GrammarError, GrammarMasks, RowMatcher
from plansmith.serving.model_loading import AdapterCard, read_card
from plansmith.serving.packed_linear import can_pack, pack_linears
from plansmith.serving.ragged_attention import RowCache, SharedPrefix, ragged_attention
from plansmith.serving.request_queue import Request, RequestQueue

STOP = 1


class ScriptedMatcher:
    """A grammar that forces the same tokens after every choice and is complete after `length` tokens."""

    def __init__(self, forces: list[int], length: int, error: str | None = None) -> None:
        self.forces, self.length, self.error = forces, length, error
        self.seen: list[int] = []

    @property
    def complete(self) -> bool:
        return len(self.seen) >= self.length

    def consume(self, tokens: list[int]) -> None:
        self.seen += tokens

    def forced(self) -> list[int]:
        return self.forces


def make_row(catalog: Catalog, limit: int, matcher: ScriptedMatcher | None) -> Row:
    request = Request("query", catalog, matcher is not None)
    return Row(request, 10, [5, 6], limit, cast("RowMatcher | None", matcher), frozenset([STOP]))


def test_a_free_row_ends_at_its_stop_token_or_at_the_limit(catalog: Catalog) -> None:
    row = make_row(catalog, 3, None)
    for token in (7, 8):
        row.accept(token)
        assert row.finish is None
    assert row.pending == [5, 6, 7, 8]
    row.accept(STOP)
    assert (row.output, row.finish) == ([7, 8], FinishReason.STOP)
    full = make_row(catalog, 2, None)
    full.accept(7)
    full.accept(8)
    assert (full.output, full.finish) == ([7, 8], FinishReason.LENGTH)


def test_forced_tokens_go_with_the_chosen_one_and_are_cut_at_the_limit(catalog: Catalog) -> None:
    row = make_row(catalog, 6, ScriptedMatcher([20, 21], length=99))
    row.begin()
    row.accept(7)
    assert (row.output, row.pending, row.finish) == ([20, 21, 7, 20, 21], [5, 6, 20, 21, 7, 20, 21], None)
    row.accept(8)
    assert (row.output, row.finish) == ([20, 21, 7, 20, 21, 8], FinishReason.LENGTH)
    cut = make_row(catalog, 2, ScriptedMatcher([20, 21], length=99))
    cut.accept(7)
    assert (cut.output, cut.finish) == ([7, 20], FinishReason.LENGTH)


@pytest.mark.parametrize(("limit", "finish"), [(3, FinishReason.STOP), (2, FinishReason.LENGTH)])
def test_a_complete_plan_stops_only_where_all_of_it_fits_the_limit(
    catalog: Catalog, limit: int, finish: FinishReason
) -> None:
    row = make_row(catalog, limit, ScriptedMatcher([20, 21], length=3))
    row.accept(7)
    assert (row.output, row.finish) == ([7, 20, 21][:limit], finish)


def test_a_failed_grammar_is_the_error_of_its_row(catalog: Catalog) -> None:
    row = make_row(catalog, 9, ScriptedMatcher([], length=99, error="too complex"))
    row.accept(7)
    assert (row.finish, row.error) == (FinishReason.ERROR, "grammar: too complex")


class Layer:
    layer_idx = 0


def plain_attention(query_HD: Tensor, keys_KTD: Tensor, values_KTD: Tensor, window: int | None) -> Tensor:
    """Attention of the last token over all of its row, in the textbook's form."""
    groups = query_HD.shape[0] // keys_KTD.shape[0]
    first = 0 if window is None else max(keys_KTD.shape[1] - window, 0)
    keys, values = (x.repeat_interleave(groups, 0)[:, first:] for x in (keys_KTD, values_KTD))
    return (torch.einsum("hd,htd->ht", query_HD, keys) * 0.5).softmax(-1).unsqueeze(1).bmm(values).squeeze(1)


@pytest.mark.parametrize("window", [None, 3, 7, 50])
@pytest.mark.parametrize("num_prefix", [0, 1, 12])
def test_packed_rows_attend_as_each_row_would_alone(window: int | None, num_prefix: int) -> None:
    torch.manual_seed(num_prefix)
    rng = random.Random(num_prefix)
    rows, heads, kv_heads, width = 5, 4, 2, 8
    prefix_kv = (torch.randn(kv_heads, num_prefix, width), torch.randn(kv_heads, num_prefix, width))
    prefix = SharedPrefix((prefix_kv,), num_prefix) if num_prefix else None
    cache = RowCache(rows, 1)
    told = [list(prefix_kv) for _ in range(rows)]
    for _ in range(6):
        taking = sorted(rng.sample(range(rows), rng.randint(1, rows)))
        lengths = [rng.choice([1, 1, 2, 5, 11, 70]) for _ in taking]
        starts = [told[row][0].shape[1] - num_prefix for row in taking]
        num = sum(lengths)
        query, key, value = (torch.randn(1, h, num, width) for h in (heads, kv_heads, kv_heads))
        layout = cache.begin(prefix, taking, starts, lengths, torch.device("cpu"))
        out, _ = ragged_attention(Layer(), query, key, value, None, scaling=0.5, sliding_window=window, row_cache=cache)
        index = 0
        for row, length in zip(taking, lengths, strict=True):
            for _ in range(length):
                told[row] = [
                    torch.cat([old, new[0, :, index : index + 1]], 1)
                    for old, new in zip(told[row], (key, value), strict=True)
                ]
                expected = plain_attention(query[0, :, index], told[row][0], told[row][1], window)
                torch.testing.assert_close(out[0, index], expected, rtol=1e-4, atol=1e-5)
                assert int(layout.position_N[index]) == told[row][0].shape[1] - 1
                index += 1
        source, target = rng.sample(range(rows), 2)
        cache.move(source, target, told[source][0].shape[1] - num_prefix)
        told[target] = list(told[source])


def test_packed_linear_layers_give_what_the_plain_ones_give() -> None:
    if not can_pack(torch.device("cpu"), torch.float32):
        pytest.skip("this build of torch has no oneDNN layout")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(48, 96), nn.ReLU(), nn.Sequential(nn.Linear(96, 24, bias=False)))
    inputs = [torch.randn(1, n, 48) for n in (1, 2, 17)] + [torch.randn(3, 48)]
    with torch.inference_mode():
        expected = [model(x) for x in inputs]
        assert pack_linears(model) == 2
        for x, y in zip(inputs, expected, strict=True):
            torch.testing.assert_close(model(x), y, rtol=1e-4, atol=1e-5)
    assert not can_pack(torch.device("cpu"), torch.bfloat16)


def test_a_schema_that_cannot_be_a_grammar_is_one_clear_error_and_the_next_one_works(qwen: Path) -> None:
    from transformers import AutoTokenizer

    masks = GrammarMasks(AutoTokenizer.from_pretrained(qwen), vocab_rows=416, stop_ids=frozenset([STOP]))
    with pytest.raises(GrammarError, match="cannot become a grammar"):
        masks.compile({"type": "string", "pattern": "(?=x)y"})
    with pytest.raises(GrammarError, match="cannot become a grammar"):
        masks.compile({"not": {"type": "string"}})
    with pytest.raises(GrammarError, match="uniqueItems"):
        masks.compile({"type": "array", "uniqueItems": True, "x-guidance": {"lenient": True}})
    matcher = masks.compile({"const": "ab"}).start()
    allowed = masks.allowed([matcher, None])
    assert 0 < int(allowed[0].sum()) < 10
    assert allowed[1].all()


def test_requests_keep_their_order_and_other_catalogs_are_not_overtaken(
    catalog: Catalog, other_catalog: Catalog
) -> None:
    queue = RequestQueue()
    for query, wanted in (("a", catalog), ("b", catalog), ("c", other_catalog), ("d", catalog)):
        queue.put(Request(query, wanted, True))
    first = queue.take(gather=1, wait_seconds=0)
    taken = [first, *(queue.take_alike(catalog) for _ in range(2))]
    assert [request and request.query for request in taken] == ["a", "b", None]
    assert [queue.take(gather=1, wait_seconds=0).query for _ in range(2)] == ["c", "d"]  # type: ignore[union-attr]


def test_an_adapter_without_a_card_says_nothing_about_its_catalog(tmp_path: Path, catalog: Catalog) -> None:
    card = read_card(tmp_path)
    assert card == AdapterCard(tmp_path, None, None)
    card.require(catalog)
    (tmp_path / "plansmith.json").write_text(json.dumps({"catalog_hash": catalog.hash, "prompt_hash": None, "x": 1}))
    assert read_card(tmp_path).catalog_hash == catalog.hash
