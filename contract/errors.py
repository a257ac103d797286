"""Errors that reach the user, each with the exit code of the command that raises it.

Exit codes: 0 done, 1 the work says no (invalid plan, failed gate), 2 unusable input or config,
3 a service was not reachable, 130 stopped by Ctrl-C.
"""


class PlansmithError(Exception):
    """Base of our errors. The message says what was found, what was expected and what to do."""

    exit_code: int = 1


class InputError(PlansmithError):
    """A file, a config, a catalog or an argument cannot be used (exit code 2)."""

    exit_code = 2


class CatalogError(InputError):
    """A catalog cannot be loaded; the message lists every problem found."""


class CatalogMismatchError(InputError):
    """Data, adapter, grammar or report belong to another catalog; the message names both hashes."""

    def __init__(self, *, what: str, expected: str, found: str) -> None:
        super().__init__(
            f"{what} was made for catalog {found}, but the catalog given here is {expected}. "
            "Pass the catalog that it was made with, or rebuild it for this one."
        )


class ResolutionError(PlansmithError):
    """A reference has no value in the results so far, or a template cannot be filled."""


class MissingExtraError(InputError):
    """An optional dependency is absent; the message names the extra that brings it."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package!r} is not installed. Run: pip install 'plansmith[{extra}]'")


class ServiceError(PlansmithError):
    """A service (teacher, planner endpoint) could not be reached (exit code 3)."""

    exit_code = 3
