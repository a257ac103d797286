"""The shared-prefix forward against running prefix and example together, one example at a time."""

from __future__ import annotations

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from plansmith.contract.errors import InputError
from plansmith.training.loss import chunked_plan_loss
from plansmith.training.prefix import Encoded, hidden_at_targets, pack, prepare

VOCAB = 97
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 2,
    "eos_token_id": 1,
}


def tiny_qwen2() -> PreTrainedModel:
    return Qwen2ForCausalLM(Qwen2Config(**SIZES))


def tiny_llama() -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**SIZES))


def tiny_gemma3() -> PreTrainedModel:
    """Its window (8) is shorter than the prefix (20) and than most examples."""
    layer_types = ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"]
    return Gemma3ForCausalLM(
        Gemma3TextConfig(**SIZES, head_dim=8, query_pre_attn_scalar=8, sliding_window=8, layer_types=layer_types)
    )


MODELS = {"qwen2": tiny_qwen2, "llama": tiny_llama, "gemma3": tiny_gemma3}


def with_adapter(name: str, *, random: bool = True) -> PreTrainedModel:
    torch.manual_seed(0)
    peft = get_peft_model(
        MODELS[name](), LoraConfig(r=4, target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "up_proj"])
    )
    for key, parameter in peft.named_parameters():
        if random and "lora_B" in key:
            torch.nn.init.normal_(parameter, std=0.1)
    return peft.get_base_model()


def some_examples(lengths: list[tuple[int, int]]) -> list[Encoded]:
    torch.manual_seed(1)
    return [Encoded(torch.randint(3, VOCAB, (query + plan,)).tolist(), query, [1.0] * plan) for query, plan in lengths]


PREFIX = list(range(3, 23))
EXAMPLES = some_examples([(5, 9), (3, 4), (12, 20), (4, 1), (6, 8), (5, 9)])


def gradients(model: PreTrainedModel) -> dict[str, Tensor]:
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


def separate(model: PreTrainedModel, examples: list[Encoded]) -> tuple[float, dict[str, Tensor]]:
    """The reference: transformers' own attention, prefix and example in one row, one example at a time."""
    model.set_attn_implementation("eager")
    total = sum(len(e.ids) - e.num_query for e in examples)
    loss = torch.zeros(())
    for example in examples:
        ids = torch.tensor(PREFIX + example.ids)
        start = len(PREFIX) + example.num_query
        logits = model(input_ids=ids[None]).logits[0, start - 1 : -1]
        loss = loss + cross_entropy(logits, ids[start:], reduction="sum") / total
    loss.backward()
    return float(loss.detach()), gradients(model)


def shared(model: PreTrainedModel, examples: list[Encoded], *, cut: int) -> tuple[float, dict[str, Tensor]]:
    """The same loss with a shared prefix, in micro-batches of `cut` examples."""
    prepare(model)
    total = float(sum(len(e.ids) - e.num_query for e in examples))
    value = 0.0
    for start in range(0, len(examples), cut):
        packed = pack(PREFIX, examples[start : start + cut])
        hidden = hidden_at_targets(model, packed)
        head = model.get_output_embeddings()
        out = chunked_plan_loss(hidden, head, packed.target_N, packed.weight_N, weight_total=total, chunk=7)
        out.loss.backward()
        value += float(out.loss.detach())
    return value, gradients(model)


def relative(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    assert found.keys() == expected.keys()
    assert found
    return max(float((found[k] - expected[k]).norm() / expected[k].norm()) for k in expected)


@pytest.mark.parametrize("cut", [6, 4, 1])
@pytest.mark.parametrize("name", sorted(MODELS))
def test_shared_prefix_gives_the_loss_and_gradients_of_separate_runs(name: str, cut: int) -> None:
    model = with_adapter(name)
    loss, grads = separate(model, EXAMPLES)
    found, found_grads = shared(model, EXAMPLES, cut=cut)
    assert found == pytest.approx(loss, abs=1e-6)
    assert len(grads) == 40
    assert relative(found_grads, grads) < 1e-5


def test_equal_lengths_share_one_group_and_different_ones_do_not() -> None:
    lengths = [g.lengths for g in pack(PREFIX, EXAMPLES).layout.groups]
    assert lengths == [(5,), (7,), (14, 14, 14), (32,)]


def test_gradient_checkpointing_changes_nothing() -> None:
    model = with_adapter("gemma3")
    _, grads = shared(model, EXAMPLES, cut=6)
    model.enable_input_require_grads()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    _, found = shared(model, EXAMPLES, cut=6)
    assert relative(found, grads) < 1e-6


def test_a_prepared_model_still_generates_as_before() -> None:
    model = with_adapter("gemma3").eval()
    ids = torch.tensor([PREFIX])
    model.set_attn_implementation("eager")
    before = model.generate(ids, max_new_tokens=12, do_sample=False, pad_token_id=0)
    prepare(model)
    assert model.generate(ids, max_new_tokens=12, do_sample=False, pad_token_id=0).equal(before)


def test_only_plan_tokens_are_targets() -> None:
    packed = pack(PREFIX, EXAMPLES[:2])
    targets = [example.ids[example.num_query :] for example in (EXAMPLES[1], EXAMPLES[0])]
    assert packed.target_N.tolist() == targets[0] + targets[1]
    assert packed.ids_T[packed.predict_N + 1].tolist() == packed.target_N.tolist()


def test_attention_with_soft_capping_is_refused() -> None:
    model = tiny_gemma3()
    model.config.attn_logit_softcapping = 50.0
    with pytest.raises(InputError, match="soft-capping"):
        prepare(model)


def test_layers_that_are_no_plain_attention_are_refused() -> None:
    model = tiny_gemma3()
    model.config.layer_types = ["chunked_attention"] * 4
    with pytest.raises(InputError, match="chunked_attention"):
        prepare(model)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("name", MODELS)
def test_flex_attention_over_the_whole_row_sees_what_the_cut_row_sees(name: str):
    model = with_adapter(name)
    prepare(model)
    with torch.no_grad():
        cut = hidden_at_targets(model, pack(PREFIX, EXAMPLES))
        whole = hidden_at_targets(model, pack(PREFIX, EXAMPLES, flex=True))
    assert torch.allclose(cut, whole, atol=1e-5)
    assert float(cut.abs().max()) > 0.1
