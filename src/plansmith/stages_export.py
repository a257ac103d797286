"""The last stage of a pipeline: what a server loads, in `out/NAME/export`; made anew for another adapter only."""

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
    target, report = line.path / "export", line.path / "report.json"
    inputs: dict[str, Any] = {
        "form": form,
        "base": base.hash,
        "adapter": file_hash(adapter / "adapter_model.safetensors"),
        "data": data.manifest.files,
    }
    if enter(line, "export", inputs, made=(target / "plansmith.json").is_file(), aside="export"):
        from plansmith.training.export import Form, Source, export

        line.run.mark("export", inputs, done=False)
        found = export(Source(base.path, adapter, data, report), target, Form(form), progress=line.progress)
        for note in found.notes:
            line.progress.note(f"export: {note}")
        line.run.mark("export", inputs, done=True)
    return target
