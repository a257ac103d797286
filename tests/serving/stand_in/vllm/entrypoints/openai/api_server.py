"""A stand-in for vLLM's server, for tests of the process around it: same command line, same routes, no model.

`STAND_IN` says how it behaves: `ok`; `fails` (writes `STAND_IN_LOG` and ends with 1); `slow` (never ready);
`unconstrained` (ignores schemas); `nobos` (tokens without the first); `dies` (ends at the first plan after its start);
`stubborn` (ignores SIGTERM). Its arguments go to `STAND_IN_ARGS`, requests to `STAND_IN_REQUESTS`, a line each.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODE = os.environ.get("STAND_IN", "ok")
LOADED: set[str] = set()


def note(variable: str, value: Any) -> None:
    if variable in os.environ:
        with open(os.environ[variable], "a", encoding="utf-8") as file:
            file.write(json.dumps(value) + "\n")


def written(body: dict[str, Any]) -> str:
    schema = body.get("response_format", {}).get("json_schema", {}).get("schema", {})
    if MODE == "unconstrained" or not schema:
        return "I would say so."
    if "word" in schema.get("properties", {}):
        return json.dumps({"word": schema["properties"]["word"]["enum"][0]})
    return "[]"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        return

    def do_GET(self) -> None:
        ready = MODE != "slow" and self.path == "/health"
        self.answer(200 if ready else 503, {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        note("STAND_IN_REQUESTS", {"path": self.path, "pid": os.getpid(), "body": body})
        if self.path == "/tokenize":
            ids = list(body["prompt"].encode())
            self.answer(200, {"tokens": ids if MODE == "nobos" else [2, *ids], "count": len(ids)})
        elif self.path == "/v1/load_lora_adapter":
            LOADED.add(body["lora_name"])
            self.answer(200, {})
        elif self.path == "/v1/unload_lora_adapter":
            LOADED.discard(body["lora_name"])
            self.answer(200, {})
        elif self.path == "/v1/completions" and body["model"] in LOADED:
            prompt = body["prompt"] if isinstance(body["prompt"], str) else ""
            if MODE == "dies" and "die now" in prompt:
                os._exit(3)
            text = written(body)
            usage = {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}
            choice = {"index": 0, "text": text, "finish_reason": "stop"}
            self.answer(200, {"model": body["model"], "choices": [choice], "usage": usage})
        else:
            self.answer(404, {"error": {"message": f"no model {body.get('model')}"}})

    def answer(self, status: int, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--model", "--host", "--dtype", "--served-model-name", "--structured-outputs-config"):
        parser.add_argument(name, required=True)
    for name in ("--port", "--max-model-len"):
        parser.add_argument(name, required=True, type=int)
    for name in ("--max-lora-rank", "--max-loras"):
        parser.add_argument(name, type=int)
    parser.add_argument("--lora-modules", nargs="+", default=[])
    for name in ("--enable-lora", "--enable-prefix-caching", "--enforce-eager"):
        parser.add_argument(name, action="store_true")
    options = parser.parse_args()
    note("STAND_IN_ARGS", sys.argv[1:])
    LOADED.update([options.served_model_name, *(one.partition("=")[0] for one in options.lora_modules)])
    if MODE == "fails":
        print(os.environ["STAND_IN_LOG"], flush=True)
        sys.exit(1)
    if MODE == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    note("STAND_IN_PIDS", [os.getpid(), child.pid])
    print("Starting to load model", flush=True)
    server = ThreadingHTTPServer((options.host, options.port), Handler)
    print("Application startup complete.", flush=True)
    server.serve_forever()
    time.sleep(0)


if __name__ == "__main__":
    main()
