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
    from plansmith.serve_config import LocalPlanner, RecordedPlanner, ServeConfig, UrlPlanner, VllmPlanner
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
        return await _by_url(found, catalog, stack)
    if found.kind == "vllm":
        return await _in_vllm(found, catalog, stack)
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


async def _by_url(config: UrlPlanner, catalog: Catalog | None, stack: AsyncExitStack) -> Opened:
    from plansmith.serving.openai_planner import OpenAIPlanner
    from plansmith.serving.vllm.checks import probe_of_export, prove

    own = Catalog.load(config.export / "catalog.json") if config.export is not None else None
    tokenizer = _tokenizer(config.export, config.export) if config.export is not None else None
    planner = await stack.enter_async_context(OpenAIPlanner(config.endpoint, tokenizer=tokenizer))
    asked = catalog or own
    if config.canary and asked is not None:
        _say(f"checking {config.endpoint.url}")
        probe = probe_of_export(config.export) if config.export is not None else None
        proof = await prove(planner, asked, probe)
        _say(f"constraints hold, tokens: {proof.parity.value}")
    return Opened(planner, own)


async def _in_vllm(config: VllmPlanner, catalog: Catalog | None, stack: AsyncExitStack) -> Opened:
    from plansmith.serving.vllm.checks import probe_of_export
    from plansmith.serving.vllm.server import VllmServer

    folder = config.server.adapter or config.server.model
    own = catalog or Catalog.load(folder / "catalog.json")
    tokenizer = _tokenizer(config.server.model, folder)
    server = VllmServer(config.server, own, tokenizer=tokenizer, probe=probe_of_export(folder), told=_say)
    return Opened(await stack.enter_async_context(server), own)


def _tokenizer(folder: Path, exported: Path) -> Any:
    """The tokenizer of a folder, where text is not enough for the export beside it; None: prompts go out as text."""
    import importlib.util

    card = exported / "plansmith.json"
    needed = card.is_file() and not json.loads(card.read_text(encoding="utf-8")).get("text_prompt", True)
    if not needed:
        return None
    if importlib.util.find_spec("transformers") is None:
        raise InputError(
            f"prompts for {str(exported)!r} go out as token ids, since its server would make others of the text; "
            "install the extra local for that, or export merged weights."
        )
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(folder))


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
