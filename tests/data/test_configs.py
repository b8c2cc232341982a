"""Every option of the config group `data` is described, and each default exists once."""

import ast
import inspect
from pathlib import Path
from typing import Any

import pytest
import yaml
from repository import conf_files

import hydrant.data
from hydrant.config.groups import option_path
from hydrant.safety.targets import locate

OPTIONS = [path.stem for path in conf_files("data/*.yaml").values()]


def load(option: str) -> dict[str, Any]:
    return yaml.safe_load(option_path("data", option).read_text())


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
