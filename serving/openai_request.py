"""What is sent to an OpenAI-compatible endpoint for one query: the request body, as plain JSON. Pure.

The prompt is that of `plansmith.contract.prompt`. On the chat route its prefix (instruction and workers) is the system
message and the query the user's, so that the endpoint's prefix cache serves all queries of a catalog. On the
completions route the prompt goes out as training saw it: as token ids where a tokenizer is given, which also keeps the
text of a special token in a query plain, else as text, to which the endpoint adds bos. A gateway of ours gets the
query alone. A teacher gets the conversation of `plansmith.contract.teaching` instead.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from plansmith.contract.catalog import Catalog
from plansmith.contract.endpoint import Message
from plansmith.contract.errors import InputError
from plansmith.contract.grammar import plan_schema
from plansmith.contract.prompt import Tokenizer, encode_prompt, render
from plansmith.contract.teaching import AnswerForm, Teaching, answer_schema, teacher_messages
from plansmith.serving.config import Constraint, EndpointConfig, Route

_BYTES_A_TOKEN = 4


class Fixed(dict[str, Any]):
    """An object that many requests share, with its JSON text, which takes milliseconds to make where it is a schema."""

    @cached_property
    def text(self) -> str:
        return _dumps(self)


def _dumps(value: Any) -> str:
    """JSON in ASCII, since a query may hold half a surrogate pair, which no UTF-8 does."""
    return json.dumps(value, separators=(",", ":"))


class Asked(NamedTuple):
    """One request."""

    body: dict[str, Any]
    prompt_tokens: int
    """Tokens of the prompt: exact for token ids, else an estimate that stands in where the endpoint counts none."""

    @property
    def content(self) -> bytes:
        """The body as JSON in UTF-8; what is the same for all requests is encoded once."""
        own = {name: value for name, value in self.body.items() if not isinstance(value, Fixed)}
        shared = [f",{json.dumps(name)}:{value.text}" for name, value in self.body.items() if isinstance(value, Fixed)]
        return (_dumps(own)[:-1] + "".join(shared) + "}").encode()

    @property
    def max_tokens(self) -> int | None:
        """Most tokens that the answer may have; None where the request sets no limit that we know."""
        limit = self.body.get("max_completion_tokens", self.body.get("max_tokens"))
        return limit if isinstance(limit, int) else None


def plan_request(
    query: str,
    catalog: Catalog,
    config: EndpointConfig,
    *,
    constrained: bool,
    temperature: float | None = None,
    seed: int | None = None,
    tokenizer: Tokenizer | None = None,
    teaching: Teaching | None = None,
) -> Asked:
    """The request for one plan; `temperature` and `seed` replace those of the config where they are given."""
    if teaching is not None:
        return _teaching_request(query, catalog, config, teaching, constrained, temperature, seed)
    if config.route is Route.PLANS:
        if temperature:
            raise InputError(f"the gateway at {config.url!r} decodes greedily; it cannot sample at {temperature:g}.")
        return Asked({"query": query}, estimate_tokens(query))
    if config.route is Route.CHAT:
        prompt = render(query, catalog)
        fields = _chat(prompt.prefix.rstrip("\n"), prompt.suffix.rstrip("\n"))
        tokens = estimate_tokens(prompt.prefix + prompt.suffix)
    elif tokenizer is not None:
        ids = encode_prompt(query, catalog, tokenizer)
        fields, tokens = {"prompt": ids.prefix + ids.suffix}, len(ids.prefix) + len(ids.suffix)
    else:
        prompt = render(query, catalog)
        fields = {"prompt": prompt.prefix + prompt.suffix}
        tokens = estimate_tokens(prompt.prefix + prompt.suffix)
    if constrained:
        fields |= _plan_constraint(catalog, config.max_steps, config.constraint, None)
    return Asked(_with_options(fields, config, temperature, seed), tokens)


def _teaching_request(
    query: str,
    catalog: Catalog,
    config: EndpointConfig,
    teaching: Teaching,
    constrained: bool,
    temperature: float | None,
    seed: int | None,
) -> Asked:
    messages = teacher_messages(query, catalog, teaching)
    fields: dict[str, Any] = {"messages": messages}
    if constrained:
        fields |= _plan_constraint(catalog, config.max_steps, config.constraint, teaching.form)
    return Asked(_with_options(fields, config, temperature, seed), _estimate_messages(messages))


def text_request(
    messages: Sequence[Message],
    config: EndpointConfig,
    *,
    temperature: float | None = None,
    seed: int | None = None,
    max_tokens: int | None = None,
    schema: dict[str, Any] | None = None,
) -> Asked:
    """A request for text; what is given replaces the config's."""
    fields: dict[str, Any] = {"messages": list(messages)}
    if schema is not None:
        fields |= constraint_fields(schema, config.constraint, name="answer")
    limited = config if max_tokens is None else config.model_copy(update={"max_tokens": max_tokens})
    plain = limited.model_copy(update={"top_logprobs": None})
    return Asked(_with_options(fields, plain, temperature, seed), _estimate_messages(messages))


def turn_request(
    messages: Sequence[dict[str, Any]],
    tools: Sequence[dict[str, Any]],
    config: EndpointConfig,
    *,
    temperature: float | None = None,
    max_tokens: int | None = None,
) -> Asked:
    """A request for the next turn of a conversation with tools; what is given replaces the config's."""
    fields: dict[str, Any] = {"messages": list(messages)}
    if tools:
        fields |= {"tools": list(tools), "tool_choice": "auto"}
    changed = {"top_logprobs": None} | ({} if max_tokens is None else {"max_tokens": max_tokens})
    asked = _with_options(fields, config.model_copy(update=changed), temperature, None)
    return Asked(asked, estimate_tokens(_dumps(fields)))


def _estimate_messages(messages: Sequence[Message]) -> int:
    return sum(estimate_tokens(message["content"]) for message in messages)


def canary_request(secret: str, config: EndpointConfig) -> Asked:
    """A request whose only allowed answer is an object that holds `secret`, which the prompt does not name."""
    words = "Answer with a JSON object."
    fields = _chat(words, "Answer.") if config.route is Route.CHAT else {"prompt": words + "\n"}
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"word": {"enum": [secret]}},
        "required": ["word"],
        "additionalProperties": False,
    }
    fields |= constraint_fields(schema, config.constraint)
    return Asked(_with_options(fields, config, None, None), estimate_tokens(words))


def constraint_fields(schema: dict[str, Any], constraint: Constraint, *, name: str = "plan") -> dict[str, Any]:
    """The fields that tell the endpoint to decode under a JSON Schema; none for `Constraint.NONE`."""
    if constraint is Constraint.RESPONSE_FORMAT:
        named = {"name": name, "strict": True, "schema": schema}
        return {"response_format": {"type": "json_schema", "json_schema": named}}
    if constraint is Constraint.STRUCTURED_OUTPUTS:
        return {"structured_outputs": {"json": schema}}
    return {"json_schema": schema} if constraint is Constraint.JSON_SCHEMA else {}


def estimate_tokens(text: str) -> int:
    """About how many tokens a text has, where nobody counted them: four bytes a token."""
    return -(-len(text.encode("utf-8", "surrogatepass")) // _BYTES_A_TOKEN)


def _chat(system: str, user: str) -> dict[str, Any]:
    return {"messages": [{"role": "system", "content": system}, {"role": "user", "content": user}]}


def _with_options(
    fields: dict[str, Any], config: EndpointConfig, temperature: float | None, seed: int | None
) -> dict[str, Any]:
    options: dict[str, Any] = {
        "max_tokens": config.max_tokens,
        "temperature": config.temperature if temperature is None else temperature,
        "top_p": config.top_p,
        "seed": config.seed if seed is None else seed,
        "stop": list(config.stop) or None,
        **_logprobs(config),
        **config.extra_body,
    }
    return {"model": config.model, **fields, **{name: value for name, value in options.items() if value is not None}}


def _logprobs(config: EndpointConfig) -> dict[str, Any]:
    if config.top_logprobs is None:
        return {}
    if config.route is Route.CHAT:
        return {"logprobs": True, "top_logprobs": config.top_logprobs}
    return {"logprobs": config.top_logprobs}


@lru_cache(maxsize=64)
def _plan_constraint(
    catalog: Catalog, max_steps: int, constraint: Constraint, form: AnswerForm | None
) -> dict[str, Fixed]:
    """The fields of the plan grammar, or of that of a teacher's answer."""
    schema = plan_schema(catalog, max_steps=max_steps) if form is None else answer_schema(catalog, form, max_steps)
    return {name: Fixed(value) for name, value in constraint_fields(schema, constraint).items()}
