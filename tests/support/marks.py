"""Parameters of tests that the default tests leave out, or that need an extension or a package."""

from collections.abc import Collection, Iterable
from importlib.util import find_spec
from typing import Any

import pytest
from repository import conf_files

from hydrant.installation import entry_points


def _marked(mark: pytest.MarkDecorator, rows: Iterable[Any]) -> list[Any]:
    params = [
        row if hasattr(row, "marks") else pytest.param(*(row if isinstance(row, tuple) else (row,)))
        for row in rows
    ]
    return [pytest.param(*param.values, marks=[*param.marks, mark], id=param.id) for param in params]


def slow(*rows: Any) -> list[Any]:
    """Return parameters that only the slow tests try; a tuple is one value for each argument."""
    return _marked(pytest.mark.slow, rows)


def of_extension(*rows: Any) -> list[Any]:
    """Return parameters of tests that need an extension, as `slow` does. They may be slow ones."""
    return _marked(pytest.mark.extension, rows)


_OF_EXTENSIONS = {
    *(path.removesuffix(".yaml") for path, file in conf_files().items() if "extensions" in file.parts),
    *(name for name, point in entry_points("hydrant.commands").items() if ".extensions." in point.value),
}


def choosing(*names: str) -> list[pytest.MarkDecorator]:
    """Return the marks of a case with commands or options, such as `optimizer=lion`: an extension may have one."""
    return (
        [pytest.mark.extension]
        if _OF_EXTENSIONS.intersection(name.replace("=", "/") for name in names)
        else []
    )


def each(names: Iterable[str], group: str = "") -> list[Any]:
    """Return commands, or the options of a group, as parameters; those of extensions are marked."""
    return [pytest.param(name, marks=choosing(f"{group}/{name}".lstrip("/"))) for name in names]


def configs() -> list[Any]:
    """Return all config files as parameters; those of extensions are marked."""
    return [
        pytest.param(file, marks=choosing(path.removesuffix(".yaml")), id=f"{file.parent.name}/{file.stem}")
        for path, file in conf_files().items()
    ]


def slow_but(fast: Collection[Any], cases: Iterable[Any]) -> list[Any]:
    """Return parameters of which the default tests try only those in `fast`."""
    return [pytest.param(case, marks=() if case in fast else pytest.mark.slow) for case in cases]


def needing(package: str, *values: Any) -> Any:
    """Return the values of a case that is skipped where a package is missing, which may have no wheel."""
    return pytest.param(*values, marks=pytest.mark.skipif(find_spec(package) is None, reason=f"no {package}"))
