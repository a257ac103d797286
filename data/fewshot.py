"""Examples that the teacher sees: a query, a short note on how it is served, and the plan.

Reads JSONL, one object a line: `{"query", "note", "plan"}`. Every example must be valid against the catalog: a teacher
copies what it is shown, so one wrong example makes many wrong plans.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from plansmith.contract.catalog import Catalog
from plansmith.contract.check import check_plan
from plansmith.contract.errors import InputError
from plansmith.contract.findings import Severity
from plansmith.contract.parse import ParseError, duplicate_places, parse_json
from plansmith.contract.teaching import AnswerForm, Shot, Teaching


def load_teaching(path: Path | None, catalog: Catalog, form: AnswerForm) -> Teaching:
    """What the teacher is told beyond the student's prompt.

    Raises:
        InputError: the file cannot be read, or an example is malformed, not valid, given twice, or lacks the note
            that the answer form shows; the message names file and line.

    """
    return Teaching(load_shots(path, catalog, form) if path is not None else (), form)


def load_shots(path: Path, catalog: Catalog, form: AnswerForm) -> tuple[Shot, ...]:
    """The examples of a file."""
    try:
        lines = path.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    except OSError as error:
        raise InputError(f"examples {str(path)!r} cannot be read: {error.strerror or error}.") from error
    shots: dict[str, Shot] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        place = f"{path}, line {number}"
        shot = _shot(line, place)
        _require_usable(shot, catalog, form, place)
        if shot.query in shots:
            raise InputError(f"{place}: the query {shot.query!r:.80} stands there twice; keep one example of it.")
        shots[shot.query] = shot
    if not shots:
        raise InputError(
            f"examples {str(path)!r} hold no row; expected one object a line with 'query', 'note', 'plan'."
        )
    return tuple(shots.values())


def _shot(line: bytes, place: str) -> Shot:
    try:
        value = parse_json(line.decode("utf-8"))
        twice = next(duplicate_places(value), None)
        if twice is not None:
            raise InputError(f"{place}: the key {twice[-1]!r} stands twice in its object; keep one.")
        return Shot.model_validate(value)
    except UnicodeDecodeError as error:
        raise InputError(f"{place}: not UTF-8: {error.reason} at byte {error.start} of the line.") from error
    except (ParseError, RecursionError) as error:
        raise InputError(f"{place}: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(
            f"{place}: {'/'.join(map(str, first['loc'])) or 'row'}: {first['msg']}; expected 'query', 'note', 'plan'."
        ) from error


def _require_usable(shot: Shot, catalog: Catalog, form: AnswerForm, place: str) -> None:
    if not shot.query.strip():
        raise InputError(f"{place}: 'query' is empty.")
    if form is AnswerForm.NOTE_AND_PLAN and not shot.note.strip():
        raise InputError(
            f"{place}: 'note' is empty, but the teacher is asked for notes. Write one, or set form to 'plan'."
        )
    errors = [f for f in check_plan(shot.plan, catalog).findings if f.severity is Severity.ERROR]
    if errors:
        raise InputError(
            f"{place}: the plan is not valid against the catalog {catalog.name!r}: {errors[0].path}: "
            f"{errors[0].message}"
        )
