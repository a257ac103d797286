"""Drawing on standard output with rich: as wide as the terminal, or wide enough for tables where it is none."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType

WIDTH = 120
"""Columns where standard output is no terminal."""


def draw(*items: RenderableType) -> None:
    """Print rich renderables on standard output."""
    from rich.console import Console

    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else WIDTH, highlight=False, markup=False)
    for item in items:
        console.print(item)
