"""What an export says of itself: the rows of `plansmith.json` in an exported folder, and the choices behind it.

`plansmith.serving` reads `catalog_hash` and `prompt_hash` there and refuses another catalog, for an adapter and for a
merged model alike. Holds no torch.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from plansmith.contract.records import Record
from plansmith.training.checkpoint import Card


class Form(StrEnum):
    """What is exported."""

    MERGED = "merged"
    """one model that any server loads, the adapter merged into its base"""
    ADAPTER = "adapter"
    """the adapter alone, for a server that holds the base"""


class Weights(StrEnum):
    """Number format of merged weights."""

    AUTO = "auto"
    """that of the base; a short one rounds what training changed, by as much as the card says"""
    FLOAT32 = "float32"
    """exact"""
    BFLOAT16 = "bfloat16"
    """half the size; what most servers compute in"""
    FLOAT16 = "float16"
    """half the size, finer and with less range than bfloat16"""


class Parity(Record):
    """How far the merged model on disk is from the adapter on its base, measured."""

    texts: int
    """Training rows (prompt and plan) that were run through both."""
    places: int
    """Tokens of plans whose logits were compared."""
    logit_difference: float
    """Largest difference of a logit."""
    same_token: int
    """Places at which both have the same likeliest token."""


class PromptProbe(Record):
    """A prompt and its trained tokens, so that a server's tokens can be checked where there is no tokenizer."""

    query: str
    tokens: int
    digest: str
    """`contract.prompt.ids_digest` of the ids."""
    first: tuple[int, ...]
    """The first ids."""


class ExportCard(Record):
    """What an export is; stands in it as `plansmith.json`."""

    version: Literal[1] = 1
    kind: Literal["plansmith-export"] = "plansmith-export"
    form: Form
    plansmith: str
    """Version of plansmith that wrote it."""
    base: str
    base_hash: str
    base_terms: str | None
    base_licence: str | None
    """Licence that the base's own card states; None where it states none."""
    catalog_name: str
    catalog_hash: str
    prompt_hash: str
    prompt_version: int
    prompt: Literal["plain", "chat"]
    """`chat`: the prompt is put into the tokenizer's chat template; `plain`: it is plain text after bos."""
    text_prompt: bool
    """Whether a server that is sent the prompt as text, and adds what its tokenizer adds, sees the trained tokens."""
    probe: PromptProbe | None = None
    """Of a server that is sent text; None where text is not enough."""
    stop_tokens: dict[str, int]
    """Tokens that end a plan; training ended its plans with the first."""
    data: dict[str, str]
    """Sha256 of each file of the data set."""
    data_source: str
    data_licence: str
    adapter_hash: str
    """Sha256 of the adapter's weights."""
    dtype: str
    """Number format of the weights."""
    parity: Parity | None
    """None for an adapter, whose weights are copied."""
    training: Card
    """The card that training wrote."""
    files: dict[str, str]
    """Sha256 of each other file of the export."""
