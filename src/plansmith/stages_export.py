"""The export stage of a pipeline: what a server loads, in `out/NAME/export`; made anew for another adapter only."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.contract.store import file_hash
from plansmith.stages import Base, Line, enter

if TYPE_CHECKING:
    from plansmith.data.build import DataSet


def export_planner(line: Line, data: DataSet, base: Base, adapter: Path) -> Path | None:
    """The exported folder; None where the recipe asks for none."""
    form = line.recipe.export
    if form is None:
        return None
    target = line.path / "export"
    inputs: dict[str, Any] = {
        "form": form,
        "base": base.hash,
        "adapter": file_hash(adapter / "adapter_model.safetensors"),
        "data": data.manifest.files,
    }
    if enter(line, "export", inputs, made=(target / "plansmith.json").is_file(), aside="export"):
        from plansmith.training.export import Form, Source, export

        line.run.mark("export", inputs, done=False)
        found = export(Source(base.path, adapter, data), target, Form(form), progress=line.progress)
        for note in found.notes[bool(found.notes) :]:  # the first says that there are no scores, which come later
            line.progress.note(f"export: {note}")
        line.run.mark("export", inputs, done=True)
    return target


def add_scores(line: Line) -> None:
    """Put the report's scores into the export's model card, where they are not in it yet."""
    target = line.path / "export"
    if line.recipe.export is None or not (target / "plansmith.json").is_file():
        return
    from plansmith.training.export import write_scores

    if note := write_scores(target, line.path / "report.json"):
        line.progress.note(f"export: {note}")
