"""Answer a query with a ReAct agent: a model calls the workers turn by turn. The baseline that plans are compared with.

The model is behind an OpenAI-compatible endpoint that knows tool calls (vLLM: --enable-auto-tool-choice and
--tool-call-parser). It gets the workers that are pure or read; --write adds those that write, --allow grants
permissions. Limits end every run with an answer from what is known: turns, tokens, time, calls that repeat.

Prints the answer on standard output; what happened, and what it cost, on standard error. Exit code 0: the model ended
with an answer; 1: it had to be stopped, or there is none.

Examples:
  plansmith react "Do I need an umbrella in Lisbon tomorrow?" --url http://localhost:8000/v1 --model qwen \
      --workers examples/assistant/workers.py:REGISTRY
  plansmith react "Do I need an umbrella in Lisbon tomorrow?" --url http://localhost:8000/v1 --model qwen \
      --workers examples/assistant/workers.py:REGISTRY --state out/agent.json   (the same again goes on after a stop)
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.contract.errors import InputError

if TYPE_CHECKING:
    from plansmith.serving.react.config import ReActConfig
    from plansmith.serving.react.state import AgentResult, AgentState
    from plansmith.serving.runs.running import ApprovalRequest

_LIMITS = {
    "max_steps": "turns in which workers may be called",
    "token_budget": "tokens of all requests together, never passed",
    "turn_tokens": "token limit of one turn",
    "window_tokens": "the model's context in tokens",
    "deadline_s": "seconds for the whole run",
    "temperature": "of the model; none: the endpoint's own",
}


def configure(parser: argparse.ArgumentParser) -> None:
    from plansmith.serving.react.config import ReActConfig

    parser.add_argument("query", metavar="QUERY", help="the query, in quotes")
    parser.add_argument("--url", required=True, help="the model's endpoint, in most cases ending in /v1")
    parser.add_argument("--model", required=True, metavar="NAME", help="the model's name there")
    parser.add_argument("--key-env", metavar="VAR", help="environment variable that holds the key")
    where = "module:attribute or file.py:attribute; may be given again"
    parser.add_argument("--workers", metavar="WHERE", action="append", required=True, help=where)
    parser.add_argument("--write", action="store_true", help="workers that write are tools too")
    granted = "a permission that you grant; may be given again"
    parser.add_argument("--allow", metavar="PERMISSION", action="append", default=[], help=granted)
    parser.add_argument("--yes", action="store_true", help="agree to every call that needs approval")
    parser.add_argument("--state", metavar="FILE", help="keep the run here after every turn; if it is there, go on")
    parser.add_argument("--json", action="store_true", help="print the whole run as one JSON object")
    limits = parser.add_argument_group("limits")
    for name, what in _LIMITS.items():
        default = ReActConfig.model_fields[name].default
        kind = int if isinstance(default, int) else float
        shown = "" if default is None else f" (default: {default:g})"
        limits.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar="N", default=default, help=what + shown)


def run(args: argparse.Namespace) -> int:
    result = asyncio.run(_carry_out(args))
    _print(result, whole=args.json)
    from plansmith.serving.runs.events import RunStatus

    return 0 if result.status is RunStatus.COMPLETE else 1


def _config(args: argparse.Namespace) -> ReActConfig:
    from pydantic import ValidationError

    from plansmith.contract.catalog import Effect
    from plansmith.serving.react.config import ReActConfig

    more: dict[str, Any] = {"effects": frozenset(Effect)} if args.write else {}
    try:
        return ReActConfig(**{name: getattr(args, name) for name in _LIMITS}, permissions=frozenset(args.allow), **more)
    except ValidationError as error:
        first = error.errors()[0]
        flag = f"--{str(first['loc'][0]).replace('_', '-')}"
        raise InputError(f"{flag}: {first['msg']}, found {first['input']}.") from error


async def _carry_out(args: argparse.Namespace) -> AgentResult:
    from plansmith.serving.config import EndpointConfig
    from plansmith.serving.openai_text import OpenAIText
    from plansmith.serving.react.agent import ReActAgent
    from plansmith.serving.react.state import AgentState
    from plansmith.serving.workers.loading import load_registry
    from plansmith.terminal_run import RunDisplay

    if not args.query.strip():
        raise InputError("give a query in quotes.")
    config = _config(args)
    state = Path(args.state) if args.state else None
    known = AgentState.load(state) if state is not None and state.exists() else None
    if known is not None and known.query != args.query:
        raise InputError(f"{str(state)!r} holds a run of another query ({known.query[:80]!r}); name another file.")
    model = OpenAIText(EndpointConfig(url=args.url, model=args.model, api_key_env=args.key_env))

    def save(current: AgentState) -> None:
        if state is not None:
            current.save(state)

    async with load_registry(args.workers) as registry:
        with RunDisplay(quiet=args.json) as display:

            async def ask(request: ApprovalRequest) -> bool:
                shown = json.dumps(request.args, ensure_ascii=False)
                return args.yes or await display.ask(request.step, request.worker, shown)

            asking = ask if args.yes or (sys.stdin.isatty() and not args.json) else None
            agent = ReActAgent(model, registry, config, approve=asking)
            try:
                if known is not None:
                    return await agent.resume(known, on_event=display.show, on_state=save)
                return await agent.run(args.query, on_event=display.show, on_state=save)
            finally:
                await model.release()


def _print(result: AgentResult, *, whole: bool) -> None:
    if whole:
        print(json.dumps(result.model_dump(mode="json"), ensure_ascii=False))
        return
    print(result.answer.text)
    for name, why in result.withheld.items():
        print(f"{name} was no tool: {why}", file=sys.stderr)
    for name, why in result.removed.items():
        print(f"{name} was taken off the tools: {why}", file=sys.stderr)
    counts = f"{len(result.calls)} calls, {result.bad_calls} that could not be made, {result.cut} results cut"
    cost = f"{result.asked} requests, {result.prompt_tokens} + {result.completion_tokens} tokens"
    print(f"{counts}; {cost}; {result.compactions} compactions", file=sys.stderr)
    print(f"run {result.run_id}: {result.status.value} ({result.end.value}), {result.seconds:.2f} s", file=sys.stderr)
