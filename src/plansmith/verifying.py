"""What the data stage needs of other stages to verify: agreement of plans, a judge, a student's likelihoods, Ray.

Reads the recipe; the endpoint of the judge and the student's model are opened here, only where the recipe asks for
them, and handed to `plansmith.data.build` as `Helpers`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from plansmith.contract.catalog import Catalog
from plansmith.contract.errors import InputError
from plansmith.contract.plan import Plan
from plansmith.contract.progress import Progress
from plansmith.recipe import Recipe, StudentConfig
from plansmith.serving.config import EndpointConfig, EngineConfig

if TYPE_CHECKING:
    from plansmith.data.build import Helpers
    from plansmith.data.stages.judge import Judge
    from plansmith.data.stages.runners import Runner
    from plansmith.serving.local_engine import LocalEngine


def equivalent(left: Plan, right: Plan) -> bool:
    """Whether two plans do the same, steps in another order and equal steps swapped included."""
    from plansmith.eval.matching import bijection

    return bijection(left, right) is not None


class Student:
    """A local model that is loaded when the first likelihood is wanted."""

    def __init__(self, config: StudentConfig, engine: EngineConfig) -> None:
        self._config, self._settings = config, engine
        self._engine: LocalEngine | None = None

    @property
    def identity(self) -> str:
        """Sha256 that stands for the weights; raises `InputError` where there is no model."""
        from plansmith.contract.store import file_hash
        from plansmith.training.model import base_hash

        base, adapter = self._config.base, self._config.adapter
        if not (base / "config.json").is_file():
            raise InputError(f"student.base {str(base)!r} holds no model (no config.json).")
        weights = adapter / "adapter_model.safetensors" if adapter is not None else None
        if weights is not None and not weights.is_file():
            raise InputError(f"student.adapter {str(adapter)!r} holds no adapter (no adapter_model.safetensors).")
        return base_hash(base) + (file_hash(weights) if weights is not None else "")

    def mean_nll(self, query: str, plan_text: str, catalog: Catalog) -> float:
        """Mean negative log-likelihood of the plan's tokens, in nats."""
        if self._engine is None:
            from plansmith.serving.local_engine import LocalEngine

            self._engine = LocalEngine(self._config.base, self._config.adapter, config=self._settings)
        return self._engine.mean_nll(query, plan_text, catalog)

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()


def _judge(endpoint: EndpointConfig) -> Judge:
    from plansmith.data.stages.judge import Judge
    from plansmith.serving.openai_text import OpenAIText

    identity = {"top_p": endpoint.top_p, "extra_body": endpoint.extra_body, "stop": endpoint.stop}
    return Judge(OpenAIText(endpoint), endpoint.model, identity)


def _runner(recipe: Recipe, progress: Progress) -> Runner | None:
    """Ray, where the recipe asks for it."""
    if recipe.data.ray is None:
        return None
    from plansmith.data.on_ray import RayRunner

    return RayRunner(recipe.data.ray, recipe.directory, progress)


@contextmanager
def helpers_of(recipe: Recipe, progress: Progress) -> Iterator[Helpers]:
    """What the data stage of a recipe is given; closed at the end.

    Raises:
        InputError: the recipe asks for a judge or a student without saying who that is, or the other way round.

    """
    from plansmith.data.build import Helpers

    verify = recipe.data.verify
    for wanted, given, what, who in (
        (verify.judge is not None, recipe.judge is not None, "data.verify.judge", "judge (url and model)"),
        (verify.likeliest, recipe.student is not None, "data.verify.likeliest", "student (base and adapter)"),
    ):
        if wanted and not given:
            raise InputError(f"{what} is set, but the recipe does not say who that is; set {who!r}, or unset {what}.")
        if given and not wanted:
            raise InputError(f"{who.split(' ')[0]!r} is given, but {what} is not set, so it would not be used.")
    with ExitStack() as stack:
        student = Student(recipe.student, recipe.engine) if recipe.student is not None else None
        if student is not None:
            stack.callback(student.close)
        yield Helpers(
            equivalent=equivalent if verify.vote is not None else None,
            judge=_judge(recipe.judge) if recipe.judge is not None else None,
            likelihood=student,
            student=student.identity if student is not None else "",
            runner=_runner(recipe, progress),
        )
