"""What eject knows of Hydrant by its spelling exists, and a comment there says so."""

from __future__ import annotations

import ast
import inspect
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import hydrant
from hydrant.commands.eject import couplings
from hydrant.commands.eject.refusals import POSSIBLE
from hydrant.models import GPT, Track3GPT

ROOT = Path(hydrant.__file__).parent
NOTE = "eject/couplings.py"
PLACES = {
    **dict(zip(("hydrant.errors:ConfigError", "hydrant.checks:unknown_name"), couplings.ERRORS, strict=True)),
    **{f"{module}:{name}": name for module, name in couplings.REPLACED},
    "hydrant.schedules.base:framed": couplings.FRAMED.strip("@\n"),
    "hydrant.schedules.base:split_run": couplings.SPLIT_RUN,
    "hydrant.schedules.base:Curve": couplings.CURVE,
    "hydrant.data.base:Data": "Data",
    "hydrant.data.base:check_shapes": couplings.CHECK_SHAPES,
    "hydrant.data.in_memory:InMemorySource": "InMemorySource",
    "hydrant.data.in_memory:tensor_reader": couplings.TENSOR_READER,
    "hydrant.batch:Batch": "Batch",
    "hydrant.batch:Outcome": "Outcome",
    "hydrant.tasks.base:Task": "Task",
}
"""Where each name is defined."""


@pytest.mark.parametrize("place", PLACES)
def test_each_name_exists_and_its_module_names_the_list(place: str) -> None:
    found = pkgutil.resolve_name(place)
    assert place.endswith(f":{PLACES[place]}")
    is_defined = inspect.isclass(found) or inspect.isfunction(found)
    module = found.__module__ if is_defined else place.partition(":")[0]
    assert NOTE in inspect.getsource(pkgutil.resolve_name(module)), f"{module} has no comment"


def test_every_part_of_a_user_that_is_replaced_has_a_place() -> None:
    assert {place.partition(":")[2] for place in PLACES} >= couplings.OF_OWN_PARTS.keys()


def copied_functions() -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yield the functions of the modules whose definitions are copied, with the name of their file."""
    for prefixes in couplings.COPIED.values():
        for prefix in prefixes:
            path = ROOT.joinpath(*prefix.split(".")[1:])
            files = sorted(path.glob("*.py")) if path.is_dir() else [path.with_suffix(".py")]
            assert files, prefix
            for file in files:
                tree = ast.parse(file.read_text(encoding="utf-8"))
                yield from ((file.name, n) for n in ast.walk(tree) if isinstance(n, ast.FunctionDef))


def test_functions_that_only_check_return_nothing() -> None:
    """Statements that call them are dropped."""
    checks = [(file, f) for file, f in copied_functions() if f.name.lstrip("_").startswith(couplings.CHECKS)]
    assert len(checks) > 5
    returning = [
        f"{file}:{function.name}"
        for file, function in checks
        if function.name != couplings.CHECK_SHAPES
        and not (isinstance(function.returns, ast.Constant) and function.returns.value is None)
    ]
    assert returning == []


def test_curves_and_language_models_have_the_arguments_that_are_known() -> None:
    for target in POSSIBLE["scheduler"]:
        if target.startswith("hydrant.") and not target.endswith((".Plateau", ".product", ".sequential")):
            curve = inspect.unwrap(pkgutil.resolve_name(target))
            assert next(iter(inspect.signature(curve).parameters)) == couplings.CLOCK
    attention = pkgutil.resolve_name(f"hydrant.models.transformer:{couplings.ATTENTION}")
    assert couplings.DOCUMENTS in inspect.signature(attention.forward).parameters
    for model in (GPT, Track3GPT):
        assert {couplings.INPUTS, couplings.READOUT} <= inspect.signature(model.forward).parameters.keys()


def test_the_functions_of_the_template_exist() -> None:
    template = pkgutil.resolve_name(couplings.PROGRAM)
    source = "".join(file.read_text(encoding="utf-8") for file in Path(template.__path__[0]).glob("*.py"))
    assert all(f"def {name}(" in source for name in couplings.WITH_EFFECTS)
