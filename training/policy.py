"""Policy stage: a supervised adapter is trained further on its own plans, by reward (GRPO) or by a teacher.

Takes data, base and adapter, and from the caller a sampler over the model in training and a scorer of valid plans;
writes what `policy_run` says. For `grpo` TRL's trainer does the steps; its rollout function, its log-probabilities and
its files are replaced: prompts and stop token are those of `plansmith.contract.prompt` (a chat template of the
tokenizer is never applied behind its back), the tokens are those that were drawn, the catalog runs once a micro-batch
(`prefix.py`), and nothing is pickled.

The objective is TRL's `dapo` loss: the clipped objective summed over all tokens of the step and divided once by their
number, so that cutting a batch differently changes nothing.

Not covered: several devices; vLLM was never run with it (no machine had it), only its calls are written.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from typing import Any, cast

import torch
from datasets import Dataset
from torch import Tensor
from transformers import PrinterCallback, TrainerCallback
from trl.trainer.grpo_config import GRPOConfig  # pyright: ignore[reportMissingImports]
from trl.trainer.grpo_trainer import GRPOTrainer  # pyright: ignore[reportMissingImports]

from plansmith.contract.errors import InputError
from plansmith.contract.prompt import encode_prompt, stop_id
from plansmith.contract.records import Example
from plansmith.training.checkpoint import load_checkpoint
from plansmith.training.policy_config import PolicyConfig, SampledBy
from plansmith.training.policy_loss import PlanRow, plan_hidden, token_logprobs
from plansmith.training.policy_run import PolicyMetrics, PolicyRun, Student
from plansmith.training.reward import Reward, tally


def run_grpo(run: PolicyRun) -> None:
    """All steps that are left, with TRL's GRPO trainer.

    Raises:
        InputError: there is more than one process; the last checkpoint was made from other inputs.
        TrainingError: loss or gradient is no number.

    """
    trainer = _Trainer(run)
    if trainer.accelerator.num_processes > 1:
        raise InputError("the policy stage runs on one device; start it as one process.")
    done = load_checkpoint(run.out, run.inputs, run.student.parameters, run.student.optimizer)
    run.begin(done)
    if done < run.config.steps:
        trainer.go_on(done)


class _Trainer(GRPOTrainer):
    """TRL's trainer with our prompts, draws, log-probabilities and rows."""

    def __init__(self, run: PolicyRun) -> None:
        self.plans = run
        self.done = 0
        self.rewards: list[Reward] = []
        constant = torch.optim.lr_scheduler.LambdaLR(run.student.optimizer, lambda _: 1.0)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*rollout_func.*experimental")
            super().__init__(
                model=run.student.peft,
                reward_funcs=cast("Any", self._reward),
                args=_arguments(run),
                train_dataset=_queries(run, 0),
                processing_class=run.student.tokenizer,
                optimizers=(run.student.optimizer, constant),
                rollout_func=cast("Any", _rollout),
                callbacks=[_Steps(self)],
            )
        self.remove_callback(PrinterCallback)

    def go_on(self, done: int) -> None:
        """Run the steps after `done`; the order of the queries is made here, so TRL does not shuffle."""
        self.done = done
        self.args.max_steps = self.plans.config.steps - done
        self.train_dataset = _queries(self.plans, done)
        self.train()

    def _reward(self, prompts: list[str], answer: list[str], row: list[int], **_: Any) -> list[float]:
        found = [self.plans.reward(text, self.plans.data.train[index]) for text, index in zip(answer, row, strict=True)]
        self.rewards += found
        return [reward.value for reward in found]

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Tensor, attention_mask: Tensor, logits_to_keep: int, **options: Any
    ) -> tuple[Tensor, Tensor | None, None]:
        """TRL's method with the catalog run once a micro-batch: values (B, C), 0 where there is no token."""
        student, size = self.plans.student, options.get("batch_size") or len(input_ids)
        logps_BC = torch.zeros(len(input_ids), logits_to_keep, device=input_ids.device)
        entropies_BC = torch.zeros_like(logps_BC)
        for start in range(0, len(input_ids), size):
            part = slice(start, start + size)
            mask_BC = attention_mask[part, -logits_to_keep:].bool()
            rows = _plan_rows(student, input_ids[part], attention_mask[part], logits_to_keep)
            hidden_ND, target_N = plan_hidden(student.model, student.prefix, rows, input_ids.device)
            logp_N, entropy_N = token_logprobs(
                hidden_ND,
                student.head,
                target_N,
                temperature=self.temperature,
                num_tokens=len(student.tokenizer),
            )
            places = torch.zeros_like(attention_mask[:, -logits_to_keep:], dtype=torch.bool)
            places[part] = mask_BC
            logps_BC = logps_BC.masked_scatter(places, logp_N)
            entropies_BC = entropies_BC.masked_scatter(places, entropy_N)
        return logps_BC, entropies_BC if options.get("compute_entropy") else None, None


class _Steps(TrainerCallback):
    """Seeds, learning rate, guard and rows of each step."""

    def __init__(self, trainer: _Trainer) -> None:
        self.trainer = trainer
        self.begun = 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        run, step = self.trainer.plans, self.trainer.done + state.global_step
        torch.manual_seed(run.seed * 1_000_003 + step)
        for group in run.student.optimizer.param_groups:
            group["lr"] = run.learning_rate(step)
        self.trainer.rewards.clear()
        self.begun = time.monotonic()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        run = self.trainer.plans
        grads = [p.grad for p in run.student.parameters.values() if p.grad is not None]
        norm = float(torch.stack([grad.norm() for grad in grads]).norm()) if grads else 0.0
        run.require_finite(self.trainer.done + state.global_step, 0.0, norm)

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **_: Any) -> None:
        if logs is None or "loss" not in logs:
            return
        run, step = self.trainer.plans, self.trainer.done + state.global_step
        row = PolicyMetrics(
            step=step,
            loss=float(logs["loss"]),
            rewards=tally(self.trainer.rewards),
            zero_variance=logs["frac_reward_zero_std"],
            cut=logs["completions/clipped_ratio"],
            tokens=logs["completions/mean_length"],
            entropy=logs.get("entropy"),
            kl=logs.get("kl"),
            learning_rate=run.learning_rate(step - 1),
            grad_norm=float(logs["grad_norm"]),
            seconds=round(time.monotonic() - self.begun, 3),
        )
        run.record(row)


def _rollout(prompts: list[str], trainer: _Trainer) -> dict[str, Any]:
    """TRL's rollout: tokens of prompts and plans, and the plans' text with special tokens visible."""
    run = trainer.plans
    tokenizer = run.student.tokenizer
    ids = [encode_prompt(query, run.catalog, tokenizer) for query in prompts]
    prompt_ids = [[*prompt.prefix, *prompt.suffix] for prompt in ids]
    if run.config.sampled_by is SampledBy.VLLM:
        _, drawn, logprobs, _ = trainer.vllm_generation.generate(
            prompts=prompt_ids, images=None, num_generations=run.config.group_size
        )
        plans = [list(tokens) for tokens in drawn]
        sampled = [[token[0] for token in plan] for plan in logprobs]
        answers = [_text(tokens, tokenizer) for tokens in plans]
        return {"prompt_ids": prompt_ids, "completion_ids": plans, "logprobs": sampled, "answer": answers}
    samples = run.draw(trainer.done + trainer.state.global_step, prompts)
    return {
        "prompt_ids": prompt_ids,
        "completion_ids": [list(sample.ids) for sample in samples],
        "logprobs": None,
        "answer": [sample.text for sample in samples],
    }


def _text(tokens: list[int], tokenizer: Any) -> str:
    own = tokens[:-1] if tokens and tokens[-1] == stop_id(tokenizer) else tokens
    return str(tokenizer.decode(own, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def _plan_rows(student: Student, ids_BT: Tensor, mask_BT: Tensor, plan_width: int) -> list[PlanRow]:
    """TRL's padded batch cut into queries and plans; the padding goes."""
    start = len(student.prefix)
    rows: list[PlanRow] = []
    for ids_T, mask_T in zip(ids_BT, mask_BT.bool(), strict=True):
        prompt = ids_T[:-plan_width][mask_T[:-plan_width]].tolist()
        if prompt[:start] != student.prefix:
            raise InputError("a prompt does not begin with the catalog's prefix; the rows are for another catalog.")
        rows.append(PlanRow(prompt[start:], ids_T[-plan_width:][mask_T[-plan_width:]].tolist()))
    return rows


def _queries(run: PolicyRun, done: int) -> Dataset:
    """The queries of all steps after `done`, in the order in which they are asked, with the place of their row."""
    place = {row.id: index for index, row in enumerate(run.data.train)}
    rows: list[Example] = [row for step in range(done, run.config.steps) for row in run.rows_of(step)]
    return Dataset.from_dict({"prompt": [row.query for row in rows], "row": [place[row.id] for row in rows]})


def _arguments(run: PolicyRun) -> GRPOConfig:
    config: PolicyConfig = run.config
    if config.sampled_by is SampledBy.VLLM and run.student.device.type != "cuda":
        raise InputError("policy.sampled_by is 'vllm', which needs a GPU, and torch sees none. Use 'engine'.")
    return GRPOConfig(
        output_dir=str(run.out),
        max_steps=config.steps,
        per_device_train_batch_size=config.micro_batch_size,
        gradient_accumulation_steps=config.samples // config.micro_batch_size,
        num_generations=config.group_size,
        max_completion_length=config.max_new_tokens,
        temperature=config.temperature,
        learning_rate=config.learning_rate,
        max_grad_norm=config.max_grad_norm,
        beta=config.kl,
        epsilon=config.clip,
        loss_type="dapo",
        scale_rewards="group" if config.normalize else "none",
        shuffle_dataset=False,
        seed=run.seed,
        use_cpu=run.student.device.type == "cpu",
        bf16=False,
        fp16=False,
        gradient_checkpointing=False,
        use_vllm=config.sampled_by is SampledBy.VLLM,
        vllm_mode="colocate",
        vllm_gpu_memory_utilization=config.vllm_memory,
        save_strategy="no",
        eval_strategy="no",
        logging_strategy="steps",
        logging_steps=1,
        logging_nan_inf_filter=False,
        report_to="none",
        disable_tqdm=True,
        dataloader_num_workers=0,
        dataloader_pin_memory=False,
    )
