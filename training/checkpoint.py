"""What a training run leaves on disk: checkpoints, the adapter's card, and the check that they belong together.

Writes `checkpoint-N/{state.json,state.safetensors}` (adapter weights and optimizer moments, float32) and
`adapter/plansmith.json`. The order of examples, the learning rate and the random numbers of a step are functions of
seed and step, so no generator or scheduler state is stored. Nothing is pickled.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import Parameter

from plansmith.contract.errors import InputError
from plansmith.contract.records import Record
from plansmith.contract.store import write_text
from plansmith.training.files import make_directory

CARD = "plansmith.json"
_STATE, _TENSORS = "state.json", "state.safetensors"
_MOMENTS = ("exp_avg", "exp_avg_sq")
_NAME = re.compile(r"checkpoint-(\d+)")


class Inputs(Record):
    """Everything that the trained weights depend on."""

    version: Literal[1] = 1
    trainer: int
    """Version of the training code's results."""
    seed: int
    base: str
    """Name of the base model in the config."""
    base_hash: str
    catalog_hash: str
    prompt_hash: str
    train_hash: str
    """Sha256 of the training rows."""
    config: dict[str, Any]
    """Settings of model and training that change the result."""

    def differences(self, other: Inputs) -> list[str]:
        """`name: value here, value there` of what differs."""
        mine, theirs = _flat(self.model_dump(mode="json")), _flat(other.model_dump(mode="json"))
        return [
            f"{name}: {mine.get(name)!r} here, {theirs.get(name)!r} there"
            for name in sorted({*mine, *theirs})
            if mine.get(name) != theirs.get(name)
        ]


class State(Record):
    """Where a run stands."""

    version: Literal[1] = 1
    step: int
    """Optimizer steps done."""
    inputs: Inputs


class Card(Record):
    """What an adapter is: stands beside its weights as `plansmith.json`."""

    version: Literal[1] = 1
    plansmith: str
    """Version of plansmith that trained it."""
    base: str
    base_hash: str
    base_terms: str | None
    """Terms that the base model's weights, and so the adapter, come under."""
    catalog_hash: str
    prompt_hash: str
    data: dict[str, str]
    """Sha256 of each file of the data set."""
    seed: int
    steps: int
    examples: int
    """Rows trained on, of `given`."""
    given: int
    final_loss: float
    """Loss of the last step, all terms with their factors; of the policy stage, what it minimises."""
    seconds: float
    """Wall time of the steps, interruptions left out."""
    inputs: Inputs
    kept_step: int | None = None
    """The step whose weights these are, where a validation chose them; None: the last."""
    validation: dict[str, float] | None = None
    """What the kept weights reached on held-out rows, where training validated."""


def _flat(value: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, item in value.items():
        if isinstance(item, dict):
            flat |= _flat(item, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = item
    return flat


def read_card(adapter: Path) -> Card | None:
    """The card of a finished adapter, or None where there is none."""
    path = adapter / CARD
    if not path.is_file() or not (adapter / "adapter_model.safetensors").is_file():
        return None
    try:
        return Card.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise InputError(f"{str(path)!r} is no card of an adapter: {error.errors()[0]['msg']}.") from error


def require_same(what: str, found: Inputs, wanted: Inputs) -> None:
    """Refuse work that was done for other inputs.

    Raises:
        InputError: lists every difference.

    """
    differences = wanted.differences(found)
    if differences:
        raise InputError(
            f"{what} was made from other inputs ({'; '.join(differences)}). "
            "Give the same ones, or another output directory."
        )


def save_checkpoint(
    out: Path, state: State, parameters: dict[str, Parameter], optimizer: torch.optim.Optimizer, *, keep: int
) -> Path:
    """Write `checkpoint-N`, then remove all but the last `keep`."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in parameters.items():
        tensors[f"weight/{name}"] = parameter.detach().cpu().contiguous()
        moments = optimizer.state[parameter]
        tensors |= {f"{key}/{name}": moments[key].cpu().contiguous() for key in _MOMENTS if key in moments}

    def build(draft: Path) -> None:
        save_file(tensors, draft / _TENSORS)
        write_text(draft / _STATE, state.model_dump_json(indent=1) + "\n")

    target = out / f"checkpoint-{state.step}"
    make_directory(target, build)
    for old in _checkpoints(out)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return target


def load_checkpoint(
    out: Path, inputs: Inputs, parameters: dict[str, Parameter], optimizer: torch.optim.Optimizer
) -> int:
    """Restore the last checkpoint and return its step; 0 where there is none.

    Raises:
        InputError: it is damaged, or was made from other inputs; the message lists every difference.

    """
    found = _checkpoints(out)
    if not found:
        return 0
    path = found[-1]
    state, tensors = _read(path)
    require_same(f"checkpoint {str(path)!r}", state.inputs, inputs)
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[f"weight/{name}"])
            optimizer.state[parameter] = {
                "step": torch.tensor(float(state.step)),
                **{key: tensors[f"{key}/{name}"].to(parameter.device) for key in _MOMENTS},
            }
    return state.step


def save_weights(target: Path, state: State, parameters: dict[str, Parameter]) -> None:
    """Write the adapter's weights alone, in place of earlier ones."""
    tensors = {f"weight/{name}": parameter.detach().cpu().contiguous() for name, parameter in parameters.items()}

    def build(draft: Path) -> None:
        save_file(tensors, draft / _TENSORS)
        write_text(draft / _STATE, state.model_dump_json(indent=1) + "\n")

    if target.is_dir():
        shutil.rmtree(target)
    make_directory(target, build)


def load_weights(path: Path, inputs: Inputs, parameters: dict[str, Parameter]) -> State:
    """Put weights that `save_weights` wrote into the model.

    Raises:
        InputError: they cannot be read, or were made from other inputs.

    """
    state, tensors = _read(path)
    require_same(f"weights in {str(path)!r}", state.inputs, inputs)
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[f"weight/{name}"])
    return state


def _read(path: Path) -> tuple[State, dict[str, Tensor]]:
    try:
        return State.model_validate_json((path / _STATE).read_bytes()), load_file(path / _TENSORS)
    except (OSError, ValidationError, SafetensorError) as error:
        raise InputError(f"checkpoint {str(path)!r} cannot be read: {error}. Remove it to begin anew.") from error


def _checkpoints(out: Path) -> list[Path]:
    """Complete checkpoints, the last one last."""
    found = [(int(match[1]), path) for path in out.glob("checkpoint-*") if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found)]
