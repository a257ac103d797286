"""A teacher in a process of its own: answers every query after a short, uneven wait, and counts what it was asked.

    python teacher_server.py SECONDS

Prints its URL; `GET /stats` tells how many requests came, how many different ones, and how many answers were sent.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from collections import Counter
from typing import ClassVar

ANSWER = '{"note":"One call.","plan":[{"type":"one","args":{"a":"x"}}]}'


class Teacher(asyncio.Protocol):
    asked: ClassVar[Counter[str]] = Counter()
    answered = 0
    seconds = 0.02

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.waiting = b""

    def data_received(self, data: bytes) -> None:
        self.waiting += data
        head, found, rest = self.waiting.partition(b"\r\n\r\n")
        lengths = [
            line.partition(b":")[2] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
        ]
        if not found or len(rest) < (length := int(lengths[0]) if lengths else 0):
            return
        self.waiting = b""
        if head.startswith(b"GET"):
            stats = {"asked": self.asked.total(), "different": len(self.asked), "answered": Teacher.answered}
            self.send(json.dumps(stats).encode())
            return
        digest = hashlib.sha256(rest[:length]).hexdigest()
        self.asked[digest] += 1
        wait = self.seconds * (0.5 + int(digest[:2], 16) / 255)
        asyncio.get_running_loop().call_later(wait, self.answer, json.loads(rest[:length])["model"])

    def answer(self, model: str) -> None:
        if self.transport.is_closing():
            return
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": ANSWER}}
        usage = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
        Teacher.answered += 1
        self.send(json.dumps({"id": "x", "model": model, "choices": [choice], "usage": usage}).encode())

    def send(self, content: bytes) -> None:
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
        self.transport.write(head.encode() + content)


async def main() -> None:
    Teacher.seconds = float(sys.argv[1])
    server = await asyncio.get_running_loop().create_server(Teacher, "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
