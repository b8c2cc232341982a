"""`hydrant.load_run` reads what a run has written; `model` and `evaluate` give the numbers of the command."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import hydrant
from hydrant import cli
from hydrant.runs.folder import RunFolder
from hydrant.runs.record import read_metrics
from hydrant.training.checkpoint.weights import find_weights, part_at

RUN = ("tracker=local", "data=digits", "model.hidden=[8]", "averaging=ema", "optimizer=sgd", "optimizer.lr=0.5",
       "duration=12", "log_every=2", "eval_every=3", "save_every=3", "best.mode=min")  # fmt: skip
"""A run whose best checkpoint is not the last: the lowest accuracy is that of an early one."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> hydrant.Run:
    return hydrant.train(hydrant.compose(RUN), folder=tmp_path_factory.mktemp("runs") / "run")


def test_it_reads_the_folder(run: hydrant.Run) -> None:
    assert run.summary == RunFolder(run.folder).recorded
    assert run.config["optimizer"]["lr"] == 0.5
    assert run.status == "finished"
    assert repr(run).startswith(f"Run('{run.folder}', finished, 12 updates, best val/accuracy ")
    assert hydrant.load_run(str(run.folder)).summary == run.summary


def test_metrics_are_the_rows(run: hydrant.Run) -> None:
    table, rows = run.metrics, read_metrics(run.folder)
    assert len(table) == len(rows)
    assert set(table.columns) == {key for row in rows for key in row}
    for key in ("num_updates", "val/loss", "train/loss"):
        assert table[key].dropna().tolist() == [row[key] for row in rows if key in row]
    assert all(table[key].dtype == float for key in table if "/" in str(key))


def test_the_weights_of_each_kind(run: hydrant.Run) -> None:
    models = {weights: run.model(weights) for weights in ("best", "last", "ema")}
    vectors = {name: nn.utils.parameters_to_vector(model.parameters()) for name, model in models.items()}
    assert not any(model.training for model in models.values())
    assert not any(torch.equal(vectors[a], vectors[b]) for a, b in (("best", "last"), ("last", "ema")))
    assert run.evaluate(weights="best")["val/accuracy"] == run.summary["best"]["value"]
    assert run.evaluate(weights="ema")["val/accuracy"] == run.summary["metrics"]["val_ema/accuracy"]
    assert run.evaluate(weights="last")["val/loss"] == run.summary["metrics"]["val/loss"]


def test_the_weights_of_a_run_in_double_are_those_that_it_evaluates(workdir: Path) -> None:
    words = [*RUN[:-4], "precision=fp64", "duration=2", "log_every=null"]
    doubles = hydrant.train(hydrant.compose([*words, "name=doubles"])).model("last")
    saved = find_weights("outputs/doubles", "init_from").read("init_from")
    assert {value.dtype for value in saved.values()} == {torch.float64}
    assert all(torch.equal(value, saved[name]) for name, value in doubles.state_dict().items())
    unsaved = hydrant.train(hydrant.compose([*words, "eval_every=null", "save_every=null"]))
    with pytest.raises(hydrant.ConfigError, match=r"holds no checkpoint \(save_every=null"):
        unsaved.model("last")


def test_the_best_weights_are_averaged_if_their_metric_is_the_best(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = hydrant.train(hydrant.compose([*RUN, "best.metric=val_ema/accuracy"]), folder=tmp_path / "run")
    best = run.summary["best"]
    assert best["num_updates"] < run.summary["num_updates"]
    assert run.evaluate(weights="best")["val/accuracy"] == best["value"]
    path = f"{run.folder}/checkpoints/best"
    for words in ([str(run.folder), "--weights", "best"], [path], [path, "--weights", "model"]):
        capsys.readouterr()
        assert cli.main(["evaluate", "--json", *words]) == 0
        is_best = json.loads(capsys.readouterr().out)["val/accuracy"] == best["value"]
        assert is_best == ("model" not in words)
    averaged = run.model("best").state_dict()
    initial = find_weights(path, "init_from").read("init_from")
    assert initial.keys() == averaged.keys()
    assert all(torch.equal(initial[name], averaged[name]) for name in averaged)
    named = part_at(f"{run.folder}/checkpoints/last"), part_at(run.folder), part_at(path)
    assert named == ("model", "model", "ema")


def test_evaluate_gives_the_numbers_of_the_command(
    run: hydrant.Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["evaluate", str(run.folder), "--json", "--weights", "ema"]) == 0
    assert run.evaluate(weights="ema").items() <= json.loads(capsys.readouterr().out).items()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda run: run.model("bst"), "weights: unknown weights 'bst'; did you mean 'best'"),
        (lambda run: run.evaluate("tset"), "split: unknown split 'tset'"),
        (lambda run: hydrant.load_run(run.folder.parent), "folder: .* holds no run"),
        (lambda run: hydrant.load_run(run.folder, allow_targets="own"), "allow_targets: needs a list"),
    ],
    ids=["weights", "split", "folder", "allow_targets"],
)
def test_a_wrong_word_is_refused(run: hydrant.Run, call: Callable[[hydrant.Run], object], words: str) -> None:
    with pytest.raises(hydrant.ConfigError, match=words):
        call(run)


def test_code_of_others_needs_consent(workdir: Path, user_module: Callable[[str, str], None]) -> None:
    lines = [
        "from torch import nn",
        "def own():",
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))",
    ]
    user_module("own_net", "\n".join(lines))
    (workdir / "conf" / "model").mkdir(parents=True)
    (workdir / "conf" / "model" / "own.yaml").write_text("_target_: own_net.own\n")
    words = ["tracker=local", "data=digits", "model=own", "++allow_targets=[own_net]", "duration=1"]
    trained = hydrant.train(hydrant.compose(words), folder="run")
    with pytest.raises(hydrant.ConfigError, match="requests to run code of 'own_net'"):
        hydrant.load_run("run").model("last")
    with pytest.raises(hydrant.ConfigError, match=r"'own_net\.own' is not allowed"):
        hydrant.load_run("run", allow_targets=["harmless"]).model("last")
    loaded = hydrant.load_run("run", allow_targets=["own_net"])
    assert loaded.evaluate() == trained.evaluate()
