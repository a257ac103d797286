"""The stages before a data set is built: queries, and a teacher's plans for them.

Reads a `Factory` config and the run directory; writes what `plansmith.data.queries` and `plansmith.data.teacher` write.
The teacher's client is made here and handed in as a `Planner` or `TextModel`. One process at a time works in a run
directory: a second one is refused.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from plansmith.contract.catalog import Catalog
from plansmith.contract.errors import InputError
from plansmith.contract.progress import Progress
from plansmith.contract.store import file_hash
from plansmith.factory import EndpointTeacher, Factory, RecordedTeacher
from plansmith.rundir import RunDirectory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plansmith.contract.endpoint import Planner
    from plansmith.contract.records import Query
    from plansmith.contract.teaching import Teaching
    from plansmith.data.queries import QueriesManifest
    from plansmith.data.query_sources.grown import Grower
    from plansmith.data.taught import TeachManifest
    from plansmith.data.teacher_config import QueriesConfig, TeachConfig
    from plansmith.serving.config import EndpointConfig
    from plansmith.serving.openai_planner import OpenAIPlanner


def _held(factory: Factory, *, held: bool) -> AbstractContextManager[None]:
    """The lock of the run directory, unless the caller holds it."""
    return nullcontext() if held else RunDirectory(factory.directory).locked()


def collect(factory: Factory, progress: Progress, *, held: bool = False) -> tuple[QueriesManifest, Exception | None]:
    """Stage 0a: the queries; with the error that ended growing early, for the caller to raise."""
    from plansmith.data.queries import collect_queries

    catalog = Catalog.load(factory.catalog) if factory.catalog is not None else None
    grower, config = _grower(factory)
    with _held(factory, held=held):
        done = collect_queries(config, catalog, factory.directory, progress, seed=factory.seed, grower=grower)
    return done.manifest, done.stopped


def _grower(factory: Factory) -> tuple[Grower | None, QueriesConfig]:
    """Who invents queries, and the config with the endpoint's concurrency where it names none."""
    from plansmith.data.query_sources.grown import Grower
    from plansmith.data.teacher_config import GrownQueries

    config = factory.queries
    if not any(isinstance(source, GrownQueries) for source in config.sources):
        return None, config
    endpoint = factory.grower
    if endpoint is None and isinstance(factory.teacher, EndpointTeacher):
        endpoint = factory.teacher.endpoint
    if endpoint is None:
        raise InputError("queries are to be grown, but no endpoint is given that could; set 'grower' or 'teacher'.")
    from plansmith.serving.openai_text import OpenAIText

    sources = tuple(
        source.model_copy(update={"concurrency": source.concurrency or endpoint.concurrency})
        if isinstance(source, GrownQueries)
        else source
        for source in config.sources
    )
    identity = {"top_p": endpoint.top_p, "extra_body": endpoint.extra_body, "stop": endpoint.stop}
    return Grower(OpenAIText(endpoint), endpoint.model, identity), config.model_copy(update={"sources": sources})


class _Asked(NamedTuple):
    """A teacher, ready to be asked."""

    planner: Planner
    model: str
    identity: dict[str, Any]
    config: TeachConfig


def ask_teacher(factory: Factory, progress: Progress, *, held: bool = False) -> tuple[TeachManifest, Exception | None]:
    """Stage 0b: the teacher's answers; with the error that ended it early, for the caller to raise."""
    from plansmith.data.queries import load_queries
    from plansmith.data.taught import grown_mix, summarise
    from plansmith.data.teacher import teach

    run = RunDirectory(factory.directory)
    with _held(factory, held=held):
        asked = load_queries(run.path)
        teacher = _teacher(factory, asked.catalog, asked.queries)
        taught = teach(
            asked.queries,
            teacher.planner,
            asked.catalog,
            run.path,
            teacher.config,
            progress,
            model=teacher.model,
            identity=teacher.identity,
        )
        models: dict[str, int] = getattr(teacher.planner, "models", {})
        manifest = summarise(
            taught,
            asked,
            teacher.config,
            run.path,
            progress,
            model=teacher.model,
            models=models,
            mix=grown_mix(asked),
        )
    return manifest, taught.stopped


def _teacher(factory: Factory, catalog: Catalog, queries: Sequence[Query]) -> _Asked:
    if factory.teacher is None:
        raise InputError("no teacher is given; set 'teacher' to an endpoint (kind openai) or a file (kind recorded).")
    if isinstance(factory.teacher, RecordedTeacher):
        return _recorded(factory.teacher, factory.teach, queries)
    from plansmith.data.fewshot import load_teaching

    endpoint, config = factory.teacher.endpoint, factory.teach
    teaching = load_teaching(config.examples, catalog, config.form)
    identity = _identity(endpoint, config, catalog, teaching)
    config = config.model_copy(update={"concurrency": config.concurrency or endpoint.concurrency})
    return _Asked(_asking(endpoint, config, catalog, teaching), endpoint.model, identity, config)


def _asking(endpoint: EndpointConfig, config: TeachConfig, catalog: Catalog, teaching: Teaching) -> Planner:
    """The endpoint's client: one here, or one in each worker of Ray."""
    if config.ray is None:
        return _client(endpoint, teaching, endpoint.concurrency)
    from plansmith.data.teacher_on_ray import RayPlanner

    concurrency = min(config.concurrency or endpoint.concurrency, endpoint.concurrency)
    return RayPlanner(config.ray, partial(_client, endpoint, teaching), catalog, concurrency=concurrency)


def _client(endpoint: EndpointConfig, teaching: Teaching, concurrency: int) -> OpenAIPlanner:
    """The client for so many requests at once; made in whichever process asks."""
    from plansmith.serving.openai_planner import OpenAIPlanner

    return OpenAIPlanner(endpoint.model_copy(update={"concurrency": concurrency}), teaching=teaching)


def _recorded(teacher: RecordedTeacher, config: TeachConfig, queries: Sequence[Query]) -> _Asked:
    """A file of answers; its rows by id are joined to the queries."""
    if config.ray is not None:
        raise InputError("teach.ray is set, but the answers are recorded: nothing is asked over HTTP. Unset it.")
    from plansmith.contract.records import Example, Split
    from plansmith.serving.recorded_planner import RecordedPlanner

    items = [
        Example(
            id=query.id, query=query.query, plan=[], family="", source=query.source, split=Split.TRAIN, part="train"
        )
        for query in queries
    ]
    planner = RecordedPlanner.load(teacher.path).for_examples(items)
    return _Asked(planner, teacher.name, {"answers": file_hash(teacher.path)}, config)


def _identity(endpoint: EndpointConfig, config: TeachConfig, catalog: Catalog, teaching: Teaching) -> dict[str, Any]:
    """Everything about an endpoint that its answers depend on; not where it is, nor how fast it is asked."""
    from plansmith.contract.teaching import teaching_hash

    sampling = {"max_tokens", "top_p", "seed", "stop", "top_logprobs", "extra_body"}
    held = {"constraint", "max_steps"} if config.constrained else set[str]()
    own = {"temperature"} if config.temperature is None else set[str]()
    return {
        "prompt": teaching_hash(catalog, teaching),
        "endpoint": endpoint.model_dump(mode="json", include=sampling | held | own),
    }
