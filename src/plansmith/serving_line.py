"""Opens what `plansmith serve` serves: planner, catalog, workers, journal, answerer, fallbacks, in that order."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from plansmith.contract.catalog import Catalog
from plansmith.contract.endpoint import Planner
from plansmith.contract.errors import InputError

if TYPE_CHECKING:
    from plansmith.serve_config import LocalPlanner, RecordedPlanner, ServeConfig, UrlPlanner
    from plansmith.serving.gateway.service import Parts


class Opened(NamedTuple):
    """A planner, and the catalog that it was made for where it has one."""

    planner: Planner
    catalog: Catalog | None


async def open_parts(config: ServeConfig, stack: AsyncExitStack) -> Parts:
    """Everything that the gateway needs; the stack closes it.

    Raises:
        InputError: something cannot be used, or does not go together.
        ServiceError: the planner's endpoint does not answer.

    """
    from plansmith.serving.gateway.service import Parts
    from plansmith.serving.runs.answer import TemplateAnswerer
    from plansmith.serving.runs.journal import Journal
    from plansmith.serving.workers.loading import load_registry

    named = Catalog.load(config.catalog) if config.catalog is not None else None
    opened = await open_planner(config, named, stack)
    catalog = named or opened.catalog
    registry = load_registry(config.workers) if config.workers else None
    if catalog is None and registry is not None:
        catalog = registry.catalog
    if catalog is None:
        raise InputError("the planner has no catalog of its own; give --catalog C.json, or --workers.")
    if registry is not None:
        registry = registry if registry.catalog.hash == catalog.hash else registry.under(catalog)
        await stack.enter_async_context(registry)
    journal = None
    if config.journal is not None and registry is not None:
        config.journal.parent.mkdir(parents=True, exist_ok=True)
        journal = await stack.enter_async_context(Journal(config.journal))
    answerer: Any = TemplateAnswerer()
    if config.answer is not None:
        from plansmith.serving.runs.answer import ModelAnswerer

        model = _text_model(config.answer, stack)
        answerer = ModelAnswerer(model, min_confidence=config.runs.min_confidence)
    return Parts(
        planner=opened.planner,
        catalog=catalog,
        registry=registry,
        runs=config.runs,
        journal=journal,
        answerer=answerer,
        teacher=_teacher(config, catalog, stack),
        agent=_agent(config, registry, stack),
    )


async def open_planner(config: ServeConfig, catalog: Catalog | None, stack: AsyncExitStack) -> Opened:
    """The planner of a config."""
    found = config.planner
    if found.kind == "local":
        return await _local(found, stack)
    if found.kind == "url":
        return await _by_url(found, stack)
    return _recorded(found, catalog)


async def _local(config: LocalPlanner, stack: AsyncExitStack) -> Opened:
    from plansmith.serving.config import EngineConfig

    if config.run is not None:
        base, adapter, catalog, engine = _of_run(config.run)
    else:
        assert config.model is not None
        base, adapter, engine = config.model, config.adapter, EngineConfig()
        catalog = Catalog.load((adapter or base) / "catalog.json")
    from plansmith.serving.local_engine import LocalEngine

    _say(f"loading {base.name}")
    opened = await asyncio.to_thread(LocalEngine, base, adapter, config=config.engine or engine)
    return Opened(await stack.enter_async_context(opened), catalog)


def _of_run(directory: Path) -> tuple[Path, Path | None, Catalog, Any]:
    import argparse

    from plansmith.commands.shared import recipe_of
    from plansmith.progress import shown_progress
    from plansmith.stages import open_line, prepared_base, trained_adapter

    asked = argparse.Namespace(
        config=None, run=str(directory), run_too=True, settings=[], name=None, out=None, seed=None
    )
    with shown_progress() as progress:
        line = open_line(recipe_of(asked), progress)
        adapter = trained_adapter(line)
        base = prepared_base(line)
    return base.path, adapter, Catalog.load(line.path / "catalog.json"), line.recipe.engine


async def _by_url(config: UrlPlanner, stack: AsyncExitStack) -> Opened:
    from plansmith.serving.openai_planner import OpenAIPlanner

    planner = await stack.enter_async_context(OpenAIPlanner(config.endpoint))
    if config.canary:
        _say(f"asking {config.endpoint.url} whether it decodes under a schema")
        await planner.require_constraint()
    return Opened(planner, None)


def _recorded(config: RecordedPlanner, catalog: Catalog | None) -> Opened:
    from plansmith.serving.recorded_planner import RecordedPlanner as Recorded

    return Opened(Recorded.load(config.file), catalog)


def _teacher(config: ServeConfig, catalog: Catalog, stack: AsyncExitStack) -> Planner | None:
    if config.teacher is None:
        return None
    from plansmith.contract.teaching import Teaching
    from plansmith.serving.openai_planner import OpenAIPlanner

    del catalog
    planner = OpenAIPlanner(config.teacher, teaching=Teaching())
    stack.push_async_callback(planner.release)
    return planner


def _agent(config: ServeConfig, registry: Any, stack: AsyncExitStack) -> Any:
    if config.agent is None:
        return None
    if registry is None:
        raise InputError("'agent' calls workers, and there are none; give --workers.")
    from plansmith.serving.react.agent import ReActAgent

    model = _text_model(config.agent.endpoint, stack)
    react = config.agent.react
    return ReActAgent(
        model, registry, react.model_copy(update={"permissions": config.runs.permissions | react.permissions})
    )


def _text_model(endpoint: Any, stack: AsyncExitStack) -> Any:
    from plansmith.serving.openai_text import OpenAIText

    model = OpenAIText(endpoint)
    stack.push_async_callback(model.release)
    return model


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def shown_config(config: ServeConfig) -> str:
    """The config as JSON, for a look at what is served."""
    return json.dumps(config.model_dump(mode="json"), indent=1)
