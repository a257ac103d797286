"""What a server must prove before it plans for anybody: that it obeys schemas, sees the trained tokens, and plans.

Talks to vLLM's `/tokenize` and to the planner's own route. The canary is `OpenAIPlanner.require_constraint`: the old
`guided_*` fields are ignored by today's vLLM, and an endpoint that ignores a constraint answers all the same. The last
plan of the checks also warms the grammar and the catalog's prefix. `/tokenize` of another server that has none is a
check that was not made, and that is said.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, cast
from urllib.parse import urlsplit

from plansmith.contract.catalog import Catalog
from plansmith.contract.endpoint import Draft
from plansmith.contract.errors import InputError, ServiceError
from plansmith.contract.prompt import ids_digest, render
from plansmith.serving.openai_planner import OpenAIPlanner

PROBE_QUERY = "Is it ready?"


class TokenProbe(NamedTuple):
    """A prompt as training saw it: its token ids, or what is known of them."""

    query: str
    tokens: int
    digest: str
    """`ids_digest` of the ids."""
    first: tuple[int, ...] = ()
    """The first ids, for the message where they differ."""
    special: bool = True
    """Whether the server is to add what its tokenizer adds (bos), as it does to a prompt that is sent as text."""


class Parity(StrEnum):
    """Whether the server's tokens are the trained ones."""

    SAME = "same"
    NOT_CHECKED = "not checked"
    """the server has no `/tokenize`, or nobody knows the trained tokens"""


class Proof(NamedTuple):
    """What was proved."""

    parity: Parity
    draft: Draft
    """The plan that warmed it up."""


def probe_of_export(folder: Path) -> TokenProbe | None:
    """The probe that an export wrote into its card (`plansmith.json`); None where it wrote none."""
    try:
        card: Any = json.loads((folder / "plansmith.json").read_text(encoding="utf-8"))
        found = card["probe"]
        return TokenProbe(found["query"], found["tokens"], found["digest"], tuple(found["first"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def probe_of(query: str, ids: Sequence[int], *, special: bool = True) -> TokenProbe:
    """The probe of a prompt whose ids are known."""
    return TokenProbe(query, len(ids), ids_digest(ids), tuple(ids[:8]), special)


async def prove(planner: OpenAIPlanner, catalog: Catalog, probe: TokenProbe | None) -> Proof:
    """Check a server.

    Args:
        planner: asks it.
        catalog: the workers that plans may call.
        probe: a prompt with its trained tokens; None where nobody knows them.

    Raises:
        InputError: it ignores schemas, sees other tokens, or gives a plan that breaks the grammar.
        ServiceError: it does not answer.

    """
    await planner.require_constraint()
    parity = Parity.NOT_CHECKED
    if probe is not None:
        parity = await _tokens(planner, catalog, probe)
    draft = await planner.plan(PROBE_QUERY, catalog)
    if draft.error is not None:
        raise ServiceError(f"{planner.config.url!r} gave no plan: {draft.error}")
    if draft.finish_reason.value == "stop" and not draft.check.parsed:
        raise InputError(
            f"{planner.config.url!r} was told the plan grammar and wrote {draft.text!r:.120}; it does not decode under "
            "it. Choose another backend, or another constraint."
        )
    return Proof(parity, draft)


async def _tokens(planner: OpenAIPlanner, catalog: Catalog, probe: TokenProbe) -> Parity:
    import httpx2

    prompt = render(probe.query, catalog)
    parts = urlsplit(planner.config.url)
    body = {"model": planner.config.model, "prompt": prompt.prefix + prompt.suffix, "add_special_tokens": probe.special}
    try:
        async with httpx2.AsyncClient(trust_env=False, timeout=30) as client:
            response = await client.post(f"{parts.scheme}://{parts.netloc}/tokenize", json=body)
    except httpx2.HTTPError as error:
        raise ServiceError(f"{planner.config.url!r} did not answer at /tokenize ({type(error).__name__}).") from error
    ids = _ids_in(response.content) if response.status_code == 200 else None
    if ids is None:
        return Parity.NOT_CHECKED
    if len(ids) == probe.tokens and ids_digest(ids) == probe.digest:
        return Parity.SAME
    hint = " The first ids differ: does its tokenizer add bos?" if tuple(ids[:8]) != probe.first else ""
    raise InputError(
        f"{planner.config.url!r} makes {len(ids)} tokens of a prompt that training saw as {probe.tokens}: it begins "
        f"{ids[:8]}, trained was {list(probe.first)}.{hint} Serve the exported folder with its own tokenizer."
    )


def _ids_in(content: bytes) -> list[int] | None:
    """The token ids of an answer; None where it holds none."""
    try:
        found: Any = json.loads(content)
    except ValueError:
        return None
    ids = cast("dict[str, Any]", found).get("tokens") if isinstance(found, dict) else None
    if not isinstance(ids, list) or not all(isinstance(one, int) for one in cast("list[Any]", ids)):
        return None
    return cast("list[int]", ids)
