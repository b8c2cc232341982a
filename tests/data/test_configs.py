"""Every option of the config group `data` gives all arguments of its target, and each default exists once."""

import ast
import importlib
import inspect
from pathlib import Path
from typing import Any

import pytest
import yaml
from public_names import public_names
from repository import conf_files

import hydrant.data
from hydrant.config.groups import option_path
from hydrant.data import ShiftFlip, digits, synthetic
from hydrant.safety.targets import locate

OPTIONS = [path.stem for path in conf_files("data/*.yaml").values()]


def load(option: str) -> dict[str, Any]:
    return yaml.safe_load(option_path("data", option).read_text())


def parts(config: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the option and the nodes nested in it, but those of the user's classes, and empty dicts."""
    nested = [value for value in config.values() if isinstance(value, dict) and value]
    return [config, *(part for part in nested if part.get("_target_", "???") != "???")]


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_gives_every_argument_of_its_target(option: str) -> None:
    for part in parts(load(option)):
        package, _, name = part.pop("_target_").rpartition(".")
        assert name in public_names(importlib.import_module(package))
        assert part.keys() == inspect.signature(locate(f"{package}.{name}", "data")).parameters.keys()


@pytest.mark.parametrize("option", OPTIONS)
def test_a_default_of_the_function_equals_that_of_the_option(option: str) -> None:
    config = load(option)
    target = locate(config["_target_"], "data")
    for name, parameter in inspect.signature(target).parameters.items():
        if parameter.default not in (parameter.empty, None):
            value = tuple(config[name]) if isinstance(config[name], list) else config[name]
            assert value == parameter.default, name


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_starts_with_a_description_a_command_and_a_result(option: str) -> None:
    comments = [
        line for line in option_path("data", option).read_text().splitlines()[:3] if line.startswith("# ")
    ]
    assert len(comments) == 3
    assert comments[1].startswith(f"#   python train.py data={option}")
    assert comments[2].startswith("# Expect ")
    config = load(option)
    assert "input_shape" in config
    assert "num_classes" in config


def test_options_without_files_have_the_configured_shapes() -> None:
    for option, build in (("digits", digits), ("synthetic", synthetic)):
        config = load(option)
        del config["_target_"]
        if "augment" in config:
            config["augment"] = ShiftFlip(config["augment"]["max_shift"], config["augment"]["flip"])
        data = build(**config)
        assert (list(data.input_shape), data.num_classes) == (config["input_shape"], config["num_classes"])


@pytest.mark.parametrize(
    "path", sorted(Path(hydrant.data.__file__).parent.glob("*.py")), ids=lambda path: path.stem
)
def test_libraries_of_one_data_set_are_imported_in_its_function(path: Path) -> None:
    """At module level, they would slow down the start of every run and of `--help`."""
    imported: list[str] = []
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            imported += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            imported.append(str(node.module))
    assert not {name.split(".")[0] for name in imported} & {"torchvision", "timm", "sklearn", "PIL"}
