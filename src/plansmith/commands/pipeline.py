"""All stages of one config in order: data, base model, training, export, serving, evaluation, report.

A stage is skipped where its output is complete for the same inputs, so the same command goes on after a stop, and
after a changed setting remakes only what depends on it.

Examples:
  plansmith pipeline --config configs/quickstart.yaml
  plansmith pipeline --config configs/quickstart.yaml --name longer --training.steps 80
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.commands.shared import add_recipe_options, program, recipe_of, settings_asked, source_flags

if TYPE_CHECKING:
    from plansmith.contract.progress import Progress
    from plansmith.data.build import DataSet
    from plansmith.factory import Factory
    from plansmith.stages import Line


def configure(parser: argparse.ArgumentParser) -> None:
    add_recipe_options(parser)


def run(args: argparse.Namespace) -> int:
    if settings_asked(args):
        return 0
    from plansmith.progress import Watch, shown_progress
    from plansmith.stages import build_data, open_line, prepare_base, train, write_recipe
    from plansmith.stages_eval import evaluate, report
    from plansmith.stages_export import add_scores, export_planner
    from plansmith.terminal import draw

    recipe = recipe_of(args)
    flags = source_flags(args)
    command = ["plansmith", "pipeline", *flags]
    with shown_progress() as progress:
        line = open_line(recipe, progress)
        watch = Watch()
        stages = Stages(progress, 5 + 2 * (recipe.factory is not None) + (recipe.export is not None))
        with line.run.locked():
            write_recipe(line, command)
            if recipe.factory is not None:
                _ask(recipe.factory, stages)
            stages.enter(f"data: {line.path}")
            data = build_data(line)
            stages.enter("base model")
            base = prepare_base(line, data)
            stages.enter("training")
            adapter = train(line, data, base)
            if recipe.export is not None:
                stages.enter(f"export: {recipe.export}")
                export_planner(line, data, base, adapter)
            what = "answers of the systems to the test items"
            stages.enter(what if recipe.serve is None else f"{what}, those of the served export among them")
            bench = evaluate(line, data, base, adapter)
            stages.enter("report")
            table = report(line, data, base, bench, command)
            add_scores(line)
        progress.note(f"done in {watch}")
    draw(table)
    print(what_next(line, data, flags))
    return 0


class Stages:
    """Tells the user which stage begins."""

    def __init__(self, progress: Progress, total: int) -> None:
        self.progress, self._total, self._number = progress, total, 0

    def enter(self, what: str) -> None:
        self._number += 1
        self.progress.note(f"{self._number} of {self._total}, {what}")


def _ask(factory: Factory, stages: Stages) -> None:
    """Queries, and the teacher's plans for them; only what is missing is asked."""
    from plansmith.stages_data import ask_teacher, collect

    stages.enter("queries")
    _, stopped = collect(factory, stages.progress, held=True)
    if stopped is not None:
        raise stopped
    stages.enter("the teacher's plans")
    _, stopped = ask_teacher(factory, stages.progress, held=True)
    if stopped is not None:
        raise stopped


def what_next(line: Line, data: DataSet, flags: list[str]) -> str:
    """What a user does with the run just made; the query is one of the test items."""
    query = next((row.query for row in data.test if row.part == "handwritten"), data.test[0].query)
    lines = [
        "",
        f"Report:       {_page(line)} (numbers: {line.path / 'report.json'})",
        f"Adapter:      {line.path / 'train' / 'adapter'}",
        f"Plan a query: {program()} plan {shlex.quote(query)} {shlex.join(flags)}",
    ]
    if line.recipe.export is not None:
        adapter = "" if line.recipe.export == "merged" else " --adapter"
        lines.append(
            f"Serve it:     {program()} serve --model{' BASE' if adapter else ''}{adapter} {line.path / 'export'}"
        )
    return "\n".join(lines)


def _page(line: Line) -> Path:
    """The report to open: the HTML page where it could be written."""
    page = line.path / "report.html"
    return page if page.exists() else line.path / "report.md"
