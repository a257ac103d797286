"""The policy stage on a tiny model that has learnt its rows by halves: GRPO through TRL, and distillation."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from plansmith.contract.errors import CatalogMismatchError, InputError, PlansmithError
from plansmith.contract.plan import Plan
from plansmith.contract.progress import Silent
from plansmith.contract.prompt import encode_prompt, encode_target, stop_id
from plansmith.contract.store import file_hash, read_rows
from plansmith.data.build import DataSet
from plansmith.serving.config import EngineConfig
from plansmith.serving.live_sampling import LiveSampler
from plansmith.serving.local_engine import LocalEngine
from plansmith.training.checkpoint import Card
from plansmith.training.policy_config import Method, PolicyConfig
from plansmith.training.policy_loss import PlanRow, plan_hidden, reverse_kl, token_logprobs
from plansmith.training.policy_run import PolicyMetrics, inputs_of, open_student, start_card
from plansmith.training.trainer import TrainingError
from plansmith.training.validation import Validation
from tests.training.policy_cases import GRPO, policy, sharp_base, supervised, with_val

pytestmark = pytest.mark.slow
WEIGHTS = "adapter_model.safetensors"


class Stop(Exception):
    """Ends a run from outside, as a kill between two steps does."""


class Stopper(Silent):
    def __init__(self, after: int) -> None:
        self.left = after

    def advance(self, amount: int = 1, **values: float | str) -> None:
        self.left -= amount
        if self.left == 0:
            raise Stop


@pytest.fixture(scope="module")
def six(data: DataSet) -> DataSet:
    return with_val(data)


@pytest.fixture(scope="module")
def sharp(six: DataSet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sharp_base(tmp_path_factory.mktemp("sharp") / "base", six)


@pytest.fixture(scope="module")
def half(six: DataSet, sharp: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter that writes some plans right and some wrong."""
    return supervised(tmp_path_factory.mktemp("half") / "train", six, sharp, 18)


@pytest.fixture(scope="module")
def grpo(six: DataSet, sharp: Path, half: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of GRPO: its directory."""
    pytest.importorskip("trl", reason="the extra 'rl' (TRL) is not installed")
    out = tmp_path_factory.mktemp("grpo") / "policy"
    policy(six, sharp, half, out)
    return out


def metrics(out: Path) -> list[PolicyMetrics]:
    return read_rows(out / "metrics.jsonl", PolicyMetrics)


def same_but_time(out: Path) -> list[dict[str, Any]]:
    return [row.model_dump(exclude={"seconds"}) for row in metrics(out)]


def test_grpo_changes_the_adapter_and_leaves_the_first_one(grpo: Path, half: Path):
    old, new = load_file(half / WEIGHTS), load_file(grpo / "adapter" / WEIGHTS)
    assert old.keys() == new.keys()
    assert sum(float((new[name] - old[name]).abs().sum()) for name in new) > 0.1
    assert sorted(path.name for path in (grpo / "adapter").iterdir()) == [
        "adapter_config.json",
        WEIGHTS,
        "plansmith.json",
    ]
    pickled = [path for path in grpo.rglob("*") if path.suffix in (".pt", ".pth", ".bin", ".pkl")]
    assert pickled == []


def test_every_step_has_a_row_with_the_parts_of_its_rewards(grpo: Path):
    found = metrics(grpo)
    assert [row.step for row in found] == [1, 2, 3, 4]
    for row in found:
        parts = row.rewards
        assert parts.answers == 12
        assert parts.unparseable + parts.unregistered + parts.faulty + parts.valid == pytest.approx(1)
        assert 0 <= row.zero_variance <= 1
        assert row.zero_variance * 3 == pytest.approx(round(row.zero_variance * 3))
        assert row.learning_rate == GRPO.learning_rate
        assert row.grad_norm > 0 or row.zero_variance == 1
    assert any(row.zero_variance < 1 for row in found), "no group had plans of different reward; nothing was learnt"


def test_held_out_rows_are_decoded_before_and_after(grpo: Path):
    found = read_rows(grpo / "validation.jsonl", Validation)
    assert [row.step for row in found] == [0, 4]
    assert [row.rewards.answers for row in found] == [2, 2]
    for row in found:
        assert [answer.id for answer in row.answers] == ["row-0", "row-1"]
        assert row.rewards.reward == pytest.approx(sum(answer.reward for answer in row.answers) / 2)


def test_the_card_says_what_the_adapter_is_and_where_it_began(grpo: Path, half: Path, six: DataSet, sharp: Path):
    card = Card.model_validate_json((grpo / "adapter" / "plansmith.json").read_bytes())
    assert (card.catalog_hash, card.steps, card.seed, card.data) == (six.catalog.hash, 4, 5, six.manifest.files)
    assert card.inputs == inputs_of(GRPO, six, sharp, half, start_card(half), seed=5)
    assert card.inputs.config["start"] == file_hash(half / WEIGHTS)
    settings = [json.loads((path / "adapter_config.json").read_bytes()) for path in (half, grpo / "adapter")]
    assert settings[0] == settings[1] | {"inference_mode": settings[0]["inference_mode"]}


def test_the_engine_loads_the_adapter_and_decodes_what_validation_decoded(grpo: Path, six: DataSet, sharp: Path):
    with LocalEngine(sharp, grpo / "adapter", config=EngineConfig(max_new_tokens=48)) as engine:
        drafts = engine.plan_batch([row.query for row in six.val], six.catalog, constrained=False)
    last = read_rows(grpo / "validation.jsonl", Validation)[-1]
    assert last.rewards.valid == sum(draft.check.valid for draft in drafts) / len(drafts)


def test_the_same_seed_gives_the_same_weights_and_a_killed_run_goes_on_to_them(
    grpo: Path, six: DataSet, sharp: Path, half: Path, tmp_path: Path
):
    with pytest.raises(Stop):
        policy(six, sharp, half, tmp_path, progress=Stopper(3))
    assert not (tmp_path / "adapter").exists()
    assert len(metrics(tmp_path)) == 3
    torch.manual_seed(99)
    policy(six, sharp, half, tmp_path)
    assert same_but_time(tmp_path) == same_but_time(grpo)
    assert (tmp_path / "adapter" / WEIGHTS).read_bytes() == (grpo / "adapter" / WEIGHTS).read_bytes()


def test_another_seed_or_start_is_refused_and_a_finished_run_is_not_run_again(
    grpo: Path, six: DataSet, sharp: Path, half: Path
):
    before = (grpo / "metrics.jsonl").read_bytes()
    assert policy(six, sharp, half, grpo, GRPO.model_copy(update={"checkpoint_every": 3})) == grpo / "adapter"
    assert (grpo / "metrics.jsonl").read_bytes() == before
    with pytest.raises(InputError, match="seed: 6 here, 5 there"):
        policy(six, sharp, half, grpo, seed=6)
    with pytest.raises(InputError, match=r"config\.stage"):
        policy(six, sharp, grpo / "adapter", half.parent)


def test_distance_to_the_start_is_part_of_the_loss_where_it_is_asked_for(
    six: DataSet, sharp: Path, half: Path, tmp_path: Path
):
    pytest.importorskip("trl", reason="the extra 'rl' (TRL) is not installed")
    config = GRPO.model_copy(update={"kl": 0.1, "steps": 2, "validate_rows": 0})
    adapter = policy(six, sharp, half, tmp_path, config)
    found = [row.kl for row in metrics(tmp_path)]
    assert found[0] == pytest.approx(0, abs=1e-6)
    assert found[1] is not None
    assert found[1] > 1e-5
    assert not any("ref" in name for name in load_file(adapter / WEIGHTS))
    assert not (tmp_path / "validation.jsonl").exists()


def test_log_probabilities_with_a_shared_prefix_are_those_of_trl(
    six: DataSet, sharp: Path, half: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    trl = pytest.importorskip("trl", reason="the extra 'rl' (TRL) is not installed")
    from plansmith.training import policy as stage

    found: list[tuple[Any, Any]] = []

    def compare(trainer: Any, model: Any, *args: Any, **options: Any) -> Any:
        ours = own(trainer, model, *args, **options)
        with torch.no_grad():
            found.append((ours, theirs(trainer, model, *args, **options)))
        return ours

    own = stage._Trainer._get_per_token_logps_and_entropies
    theirs = trl.GRPOTrainer._get_per_token_logps_and_entropies
    monkeypatch.setattr(stage._Trainer, "_get_per_token_logps_and_entropies", compare)
    config = GRPO.model_copy(update={"steps": 1, "validate_rows": 0, "temperature": 0.7})
    policy(six, sharp, half, tmp_path, config)
    assert len(found) == 2
    for ours, other in found:
        seen = ours[0] != 0
        assert seen.float().mean() > 0.3
        torch.testing.assert_close(ours[0][seen], other[0][seen], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(ours[1][seen], other[1][seen], rtol=1e-4, atol=1e-4)


def test_a_gradient_that_is_no_number_stops_before_the_weights_change(
    six: DataSet, sharp: Path, half: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("trl", reason="the extra 'rl' (TRL) is not installed")
    from plansmith.training import policy as stage

    def broken(*args: Any, **options: Any) -> Any:
        logp, entropy = token_logprobs(*args, **options)
        return logp * float("nan"), entropy

    monkeypatch.setattr(stage, "token_logprobs", broken)
    with pytest.raises(TrainingError, match=r"policy step 1: .*left alone.*policy\.learning_rate"):
        policy(six, sharp, half, tmp_path, GRPO.model_copy(update={"validate_rows": 0, "checkpoint_every": 1}))
    assert metrics(tmp_path) == []
    assert not list(tmp_path.glob("checkpoint-*"))


def test_weights_that_went_too_far_are_said_in_words(six: DataSet, sharp: Path, half: Path, tmp_path: Path):
    pytest.importorskip("trl", reason="the extra 'rl' (TRL) is not installed")
    config = GRPO.model_copy(update={"learning_rate": 1e30, "checkpoint_every": 1, "validate_rows": 0})
    with pytest.raises(PlansmithError, match=r"no numbers any more.*Lower the learning rate"):
        policy(six, sharp, half, tmp_path, config)
    state = load_file(next(tmp_path.glob("checkpoint-*")) / "state.safetensors")
    assert all(bool(value.isfinite().all()) for value in state.values())


def test_drawn_tokens_are_those_that_the_model_generates(six: DataSet, sharp: Path, half: Path):
    student = open_student(sharp, half, six.catalog, GRPO)
    sampler = LiveSampler(student.model, student.tokenizer, sharp, batch_size=4)
    queries = [row.query for row in six.train]

    def draw(temperature: float, seeds: Any) -> Any:
        return sampler.sample(queries, six.catalog, temperature=temperature, seeds=seeds, max_new_tokens=48)

    before = student.model.config._attn_implementation
    greedy = draw(0.0, range(6))
    assert (student.model.config._attn_implementation, student.model.training) == (before, True)
    student.peft.eval()
    for query, sample in zip(queries[:2], greedy, strict=False):
        prompt = encode_prompt(query, six.catalog, student.tokenizer)
        ids = torch.tensor([[*prompt.prefix, *prompt.suffix]])
        found = student.peft.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=48, do_sample=False
        )
        assert found[0, ids.shape[1] :].tolist() == list(sample.ids)
        assert sample.stopped == (sample.ids[-1] == stop_id(student.tokenizer))
    drawn = draw(1.0, range(6))
    assert drawn == draw(1.0, range(6))
    assert drawn != draw(1.0, range(6, 12))


def distance(six: DataSet, base: Path, adapter: Path, teacher: Path) -> float:
    """Reverse KL from an adapter to its teacher over the rows' right plans, which do not depend on what was drawn."""
    ours, theirs = (open_student(base, path, six.catalog, GRPO) for path in (adapter, teacher))
    plans = [
        PlanRow(
            encode_prompt(row.query, six.catalog, ours.tokenizer).suffix,
            encode_target(Plan.from_json(row.plan).canonical(six.catalog), ours.tokenizer),
        )
        for row in six.train
    ]
    with torch.no_grad():
        hidden = [plan_hidden(student.model, student.prefix, plans, student.device)[0] for student in (ours, theirs)]
        found = reverse_kl(hidden[0], ours.head, hidden[1], theirs.head, num_tokens=len(ours.tokenizer))
    return float(found.kl)


def test_distillation_moves_the_student_to_its_teacher_and_goes_on_after_a_kill(
    six: DataSet, sharp: Path, half: Path, tmp_path: Path
):
    taught = supervised(tmp_path / "taught", six, sharp, 26)
    config = PolicyConfig(
        method=Method.DISTILL,
        teacher=sharp,
        teacher_adapter=taught,
        steps=3,
        prompts=6,
        group_size=1,
        micro_batch_size=3,
        max_new_tokens=48,
        learning_rate=5e-4,
        warmup_steps=0,
        validate_rows=0,
        checkpoint_every=1,
    )
    adapter = policy(six, sharp, half, tmp_path / "whole", config)
    assert distance(six, sharp, adapter, taught) < 0.95 * distance(six, sharp, half, taught)
    with pytest.raises(Stop):
        policy(six, sharp, half, tmp_path / "cut", config, progress=Stopper(2))
    policy(six, sharp, half, tmp_path / "cut", config)
    assert same_but_time(tmp_path / "cut") == same_but_time(tmp_path / "whole")
    assert (tmp_path / "cut" / "adapter" / WEIGHTS).read_bytes() == (adapter / WEIGHTS).read_bytes()
    card = Card.model_validate_json((adapter / "plansmith.json").read_bytes())
    assert card.inputs.config["teacher_adapter"] == file_hash(taught / WEIGHTS)


def test_a_teacher_with_another_tokenizer_is_refused(six: DataSet, sharp: Path, half: Path, tmp_path: Path, data: Any):
    other = tmp_path / "other"
    other.mkdir()
    from plansmith.training.model import build_tiny

    build_tiny(other, ["something else entirely, with other pieces"], vocabulary=300)
    config = GRPO.model_copy(update={"method": Method.DISTILL, "teacher": other, "validate_rows": 0})
    with pytest.raises(InputError, match=r"other.*has another tokenizer than the student: \d+ tokens differ, first"):
        policy(six, sharp, half, tmp_path / "out", config)
    assert not (tmp_path / "out" / "adapter").exists()


def test_an_adapter_of_another_base_or_catalog_and_missing_val_rows_are_refused(
    six: DataSet, sharp: Path, half: Path, base: Path, tmp_path: Path
):
    with pytest.raises(InputError, match="was trained for base_hash"):
        policy(six, base, half, tmp_path)
    with pytest.raises(InputError, match="no val rows"):
        policy(DataSet(six.catalog, six.train, [], [], six.manifest), sharp, half, tmp_path)
    with pytest.raises(InputError, match="no finished adapter"):
        policy(six, sharp, tmp_path, tmp_path)
    card = json.loads((half / "plansmith.json").read_bytes()) | {"catalog_hash": "0" * 64}
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "plansmith.json").write_text(json.dumps(card), encoding="utf-8")
    os.link(half / WEIGHTS, copy / WEIGHTS)
    with pytest.raises(CatalogMismatchError):
        policy(six, sharp, copy, tmp_path)
