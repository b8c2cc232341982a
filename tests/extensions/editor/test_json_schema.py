"""Editors that read the schemas accept every file of conf/, and mark what a run would refuse."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator
from repository import conf_files

from hydrant import cli
from hydrant.extensions.editor.json_schema import CONFIG, json_schemas
from hydrant.files.read_file import PlainLoader

FILES = {
    name: path
    for name, path in conf_files().items()
    if path.parent.name != "wandb_sweep" and path.name not in ("_sweeper.yaml", "config_keys.yaml")
}


@pytest.fixture(scope="module")
def schemas() -> dict[str, Any]:
    return json_schemas()


def errors(schemas: dict[str, Any], group: str, text: str) -> list[str]:
    name = CONFIG if group in ("", "experiment", "debug", "sweep") else group
    content = yaml.load(text, PlainLoader) or {}
    return [error.message for error in Draft7Validator(schemas[name]).iter_errors(content)]


def test_schemas_are_schemas(schemas: dict[str, Any]) -> None:
    for content in schemas.values():
        Draft7Validator.check_schema(content)


def test_every_file_is_valid(schemas: dict[str, Any]) -> None:
    found = {file: errors(schemas, file.rpartition("/")[0], FILES[file].read_text()) for file in FILES}
    assert not {file: messages for file, messages in found.items() if messages}
    assert len(FILES) > 80


def test_a_misspelt_key_is_found_in_every_file(schemas: dict[str, Any]) -> None:
    """Only files whose target is given later, or takes any argument, accept it."""
    accepted = [
        file for file in FILES
        if not errors(schemas, file.rpartition("/")[0], FILES[file].read_text() + "\nmisspelt: 1\n")
    ]  # fmt: skip
    of_hydra = {file for file in FILES if file.startswith("hydra/")}
    assert set(accepted) <= of_hydra | {"optimizer/library.yaml", "model/none.yaml"}


@pytest.mark.parametrize(
    ("group", "text"),
    [
        ("experiment", "defaults: [{override /scheduler: wsd}]\nscheduler: {step_sice: 3}"),
        ("experiment", "duraton: 10ep"), ("experiment", "optimizer: {lrr: 0.1}"), ("experiment", "seed: one"),
        ("experiment", "defaults: [{override /model: convnett}]"), ("experiment", "defaults: [{overide /model: mlp}]"),
        ("experiment", "best: {metrik: val/loss}"), ("experiment", "best: {mode: maximum}"),
        ("experiment", "hooks: {stop_at: {metrics: x}}"), ("experiment", "optimizer: {lr: high}"),
        ("experiment", "resume_strict: maybe"), ("sweep", "hydro: {}"), ("debug", "data: {augment: 1, rooot: x}"),
        ("optimizer", "_target_: torch.optim.AdamW\n_partial_: true\nlearning_rate: 0.1"),
        ("optimizer", "_target_: torch.optim.AdamW\n_partial_: maybe"),
        ("compile", "_target_: hydrant.extensions.compile.Compile\n_partial_: true\non_failure: ignore"),
        ("model", "_target_: hydrant.models.MLP\nhidden: wide"), ("model", "_target_: 3"),
        ("data", "defaults: [digits]\nval_rato: 0.1"),
    ],
)  # fmt: skip
def test_mistakes_are_found(group: str, text: str, schemas: dict[str, Any]) -> None:
    assert errors(schemas, group, text)


@pytest.mark.parametrize(
    ("group", "text"),
    [
        ("experiment", "defaults: [{override /model: convnet}, {override /hook: [freeze, stop_at]}, _self_]"),
        ("experiment", "seed: ${oc.env:SEED}\nmodel: {_target_: my.Net, any: 1}"),
        ("experiment", "defaults: [{override /scheduler: stepped}]\nscheduler: {fn: {step_size: 3}}"),
        ("experiment", "optimizers: {critic: {optimizer: {lr: 1e-3}}}"),
        ("experiment", "defaults: [{/scheduler@schedules.weight_decay: linear}]"),
        ("model", "_target_: my.Net\nany: 1"), ("model", "_target_: hydrant.models.MLP\nhidden: ${sizes}"),
    ],
)  # fmt: skip
def test_what_runs_is_accepted(group: str, text: str, schemas: dict[str, Any]) -> None:
    assert errors(schemas, group, text) == []


def test_keys_have_explanations_and_defaults(schemas: dict[str, Any]) -> None:
    explained = schemas[CONFIG]["properties"]
    assert explained["duration"] == {"default": "60ep", "description": "how long to train"}
    assert explained["optimizer"]["properties"]["lr"]["anyOf"]
    assert "independent of `seed`" in schemas["data"]["properties"]["split_seed"]["description"]


@pytest.mark.slow
def test_a_project_has_schemas_of_its_own_options(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(workdir.parent / f"{workdir.name}-config"))
    assert cli.main(["init", "my_drafts"]) == 0
    monkeypatch.chdir(workdir / "my_drafts")
    monkeypatch.syspath_prepend(Path.cwd())
    own = json_schemas()
    for file in Path("conf").rglob("*.yaml"):
        assert errors(own, file.parent.name, file.read_text()) == []
        assert errors(own, file.parent.name, file.read_text() + "\nmisspelt: 1\n")
    assert errors(own, "experiment", "defaults: [{override /model: residual}]\nmodel: {width: 8}") == []
    assert errors(own, "model", "_target_: my_drafts.model.Residual\nwidth: wide")
    named = set(re.findall(r"\.schemas/([\w/]+)\.json", Path(".vscode/settings.json").read_text()))
    assert named <= own.keys()


def test_schemas_of_a_project_that_is_not_trusted_import_nothing_of_it(
    workdir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (workdir / "conf" / "model").mkdir(parents=True)
    (workdir / "conf" / "model" / "theirs.yaml").write_text("_target_: theirs.Net\nbreadth: 1 # of a layer\n")
    (workdir / "theirs.py").write_text("open('imported', 'w')\n")
    (workdir / "schemas").mkdir()
    (workdir / "schemas" / "model.json").write_text("of an earlier call")
    assert cli.main(["schema", "--out", "schemas"]) == 0
    assert "$schema=../../schemas/model.json" in capsys.readouterr().out
    assert (workdir / "schemas" / "hydra" / "launcher.json").is_file()
    written = json.loads((workdir / "schemas" / "model.json").read_text())
    assert written["properties"]["breadth"] == {"default": 1, "description": "of a layer"}
    assert not (workdir / "imported").exists()
