"""A small MCP server for tests: `mcp_server.py stdio`, or `mcp_server.py http PORT [json]`."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Annotated, Any

from mcp.server import MCPServer
from mcp.server.mcpserver import Image
from mcp_types import CallToolResult, TextContent, ToolAnnotations
from pydantic import BaseModel, Field

server = MCPServer("shop")


class Price(BaseModel):
    item: str
    cents: int


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def price(item: str, count: int = 1) -> Price:
    """Price of an item."""
    return Price(item=item, cents=250 * count)


@server.tool(structured_output=False)
def greeting(name: str) -> str:
    """Greet somebody."""
    return f"Hello {name}"


@server.tool(annotations=ToolAnnotations(destructive_hint=True))
def wipe(token: Annotated[str, Field(json_schema_extra={"format": "password"})]) -> str:
    """Delete everything."""
    return "gone"


@server.tool()
async def sleep(seconds: float, mark: str = "") -> str:
    """Wait; writes a line into the file `mark` when it starts."""
    if mark:
        with open(mark, "a", encoding="utf-8") as file:
            file.write(f"{os.getpid()}\n")
    await asyncio.sleep(seconds)
    return "awake"


@server.tool()
def fail(text: str) -> str:
    """Fail."""
    raise ValueError(text)


@server.tool(structured_output=False)
def picture() -> Image:
    """A picture."""
    return Image(data=b"\x89PNG", format="png")


@server.tool(structured_output=False)
def large(size: int) -> str:
    """A long text."""
    return "x" * size


@server.tool(structured_output=False)
def own_error() -> CallToolResult:
    """An error as a result."""
    return CallToolResult(content=[TextContent(type="text", text="sold out")], is_error=True)


@server.tool()
def pid() -> int:
    """Process of the server."""
    return os.getpid()


def main(arguments: list[str]) -> None:
    if arguments[0] == "stdio":
        server.run("stdio")
        return
    options: dict[str, Any] = {"json_response": "json" in arguments}
    server.run("streamable-http", host="127.0.0.1", port=int(arguments[1]), **options)


if __name__ == "__main__":
    main(sys.argv[1:])
