"""Objects in place of config groups: recorded by their class, left as they are, and resumed exactly."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from marks import of_extension, slow
from own_parts import OwnModel, OwnTask, own_data, own_model
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import UninitializedParameter
from torch.utils.data import TensorDataset
from training_runs import interrupt_at

import hydrant
from hydrant import cli
from hydrant.batch import Batch, Outcome
from hydrant.data import Data, dataset_source
from hydrant.runs.record import read_metrics
from hydrant.tasks import Classification
from hydrant.training.passed_objects import nodes_of

pytestmark = pytest.mark.usefixtures("workdir")

OWN = ("tracker=local", "global_batch_size=16", "duration=8", "log_every=2", "eval_every=4", "save_every=4",
       "averaging=ema", "optimizer=adam")  # fmt: skip


def objects() -> dict[str, Any]:
    return {"model": own_model(), "data": own_data(), "task": OwnTask}


def train(folder: Path | str, *overrides: str, **passed: Any) -> hydrant.Run:
    return hydrant.train(hydrant.compose([*OWN, *overrides]), folder=folder, **passed)


def losses(run: hydrant.Run) -> list[float]:
    return [row["train/loss"] for row in read_metrics(run.folder) if "train/loss" in row]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> hydrant.Run:
    return train(tmp_path_factory.mktemp("runs") / "run", **objects())


def test_the_run_trains_a_copy_of_the_model() -> None:
    model, before = own_model(), own_model()
    trained = train("run", "duration=2", model=model, data=own_data()).model("last")
    assert isinstance(trained, OwnModel)
    assert model.training
    assert not trained.training
    for weight, same, other in zip(
        model.parameters(), before.parameters(), trained.parameters(), strict=True
    ):
        assert torch.equal(weight, same)
        assert not torch.equal(weight, other)


def test_the_seed_decides_the_weights_of_a_model_that_a_class_makes() -> None:
    def weights(seed: int, name: str) -> torch.Tensor:
        torch.manual_seed(torch.seed())  # the caller's generator does not matter, and stays
        before = torch.get_rng_state()
        run = train(name, f"seed={seed}", "duration=1", "optimizer.lr=1e-30", model=OwnModel, data=own_data())
        assert torch.equal(torch.get_rng_state(), before)
        if name == "first":
            assert run.evaluate() == hydrant.load_run(name, model=OwnModel, data=own_data()).evaluate()
        return torch.cat([weight.flatten() for weight in run.model("last").parameters()])

    first = weights(0, "first")
    assert torch.equal(first, weights(0, "again"))
    assert not torch.equal(first, weights(1, "other"))


class OwnLazy(LazyModuleMixin, nn.Module):
    """Makes its weight and its layer when it is called, and keeps its class."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.layer = UninitializedParameter(), None

    def initialize_parameters(self, inputs: torch.Tensor) -> None:
        self.weight.materialize(inputs.shape[1:])
        self.size, self.layer = len(nn.init.ones_(self.weight)), nn.Linear(len(self.weight), 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layer(inputs.view(-1, self.size) * self.weight)


class Lazy(nn.Sequential):
    """Has no shapes before it is called."""

    def __init__(self) -> None:
        super().__init__(nn.LazyLinear(6), nn.Tanh(), OwnLazy())


def lazy_norm() -> nn.Module:
    """Return a model with buffers without shapes, which torch cannot copy."""
    return Lazy().insert(1, nn.LazyBatchNorm1d())


@pytest.mark.parametrize("model", [Lazy, *slow(Lazy(), lazy_norm)])
def test_layers_without_shapes_get_them_from_the_samples(model: Any) -> None:
    run = train("run", model=model, data=own_data())
    first, *_, last = run.model("last")
    assert (first.in_features, last.size) == (4, 6)
    assert last.weight.ne(1).all()
    half = train("half", f"resume={run.folder}/checkpoints/update_00000004", model=model, data=own_data())
    assert losses(half) == losses(run)[-len(losses(half)) :]
    assert not isinstance(model, nn.Module) or model[0].has_uninitialized_params()


def test_each_object_replaces_its_group() -> None:
    """The task doubles the loss; the model of the config takes the shapes of the data that are passed."""
    usual = train("usual", "duration=2", data=own_data())
    doubled = train("doubled", "duration=2", data=own_data(), task=OwnTask)
    assert losses(doubled) == pytest.approx([2 * loss for loss in losses(usual)])
    assert usual.config["model"]["input_shape"] == [4]
    assert usual.config["model"]["num_classes"] == 2
    assert usual.config["task"]["_target_"] == "hydrant.tasks.Classification"


def test_the_record_names_the_classes(finished: hydrant.Run) -> None:
    config = finished.config
    assert config["model"].keys() == {"_target_", "type", "structure"}
    assert config["model"]["_target_"] == "hydrant.training.passed_model"
    assert config["model"]["type"] == "own_parts.OwnModel"
    assert config["data"]["type"] == "hydrant.data.in_memory.InMemorySource"
    assert config["data"]["num_samples"] == 64
    assert config["task"]["type"] == "own_parts.OwnTask"


class Count(nn.Module):
    """Is a metric whose `reset` makes its state."""

    def reset(self) -> None:
        self.num_samples = 0

    def update(self, predictions: torch.Tensor, targets: torch.Tensor) -> None:
        self.num_samples += len(targets)

    def compute(self) -> torch.Tensor:
        return torch.tensor(self.num_samples)


class Unjudged(OwnTask):
    """Has losses where `mode` is."""

    mode = True

    def forward(self, batch: Batch) -> Outcome:
        outcome = super().forward(batch)
        return outcome if self.training is self.mode else outcome._replace(losses={}, measurements={})


def test_an_evaluation_may_have_metrics_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(model: nn.Module) -> Unjudged:
        (task := Unjudged(model)).metrics["count"] = Count()
        return task

    run = train("run", "best.metric=val/count", "best.mode=max", data=own_data(), task=make)
    measured = [row for row in read_metrics(run.folder) if "val/count" in row]
    assert [(row["val/count"], "val/loss" in row) for row in measured] == [(32, False)] * 3
    assert losses(run) == losses(train("usual", data=own_data(), task=OwnTask))
    monkeypatch.setattr(Unjudged, "mode", False)
    with pytest.raises(hydrant.ConfigError, match="task: returns no losses in training; return an Outcome"):
        train("other", data=own_data(), task=Unjudged)


class Shown(nn.Identity):
    """Shows an object."""

    def __init__(self, shown: object) -> None:
        super().__init__()
        self.shown = shown

    def extra_repr(self) -> str:
        return repr(self.shown)


def test_the_record_tells_the_arguments_of_a_partial() -> None:
    def smoothed(label_smoothing: float) -> partial[Classification]:
        return partial(Classification, label_smoothing=label_smoothing, metrics={})

    run = train("run", "duration=2", data=own_data(), task=smoothed(0.1))
    assert train("run", "duration=2", data=own_data(), task=smoothed(0.1)).status == "finished"
    assert run.config["task"]["type"] == "hydrant.tasks.classification.Classification"
    words = r"another config, which has no update left: task\.arguments"
    with pytest.raises(hydrant.ConfigError, match=words):
        train("run", "duration=2", data=own_data(), task=smoothed(0.2))


def test_a_record_holds_no_address() -> None:
    def record(value: object) -> dict[str, Any]:
        model = OwnModel()
        model.layers.append(Shown(value))
        return nodes_of({"model": model, "task": partial(OwnTask, value)})

    one, other = object(), object()
    assert record(one) == record(other)


def test_sizes_may_be_numbers_of_numpy_and_torch() -> None:
    data = own_data()
    sizes = replace(data, input_shape=(np.int64(4),), num_classes=torch.tensor(2))  # type: ignore[arg-type]
    run = train("run", "duration=2", data=sizes)
    assert (run.config["data"]["input_shape"], run.config["data"]["num_classes"]) == ([4], 2)


def test_a_resumed_run_is_equal_bit_for_bit(finished: hydrant.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        interrupt_at(patch, 3)
        with pytest.raises(KeyboardInterrupt):
            train("half", **objects())
    half = train("half", **objects())
    assert losses(half) == losses(finished)
    for weights in ("last", "ema"):
        pairs = zip(half.model(weights).parameters(), finished.model(weights).parameters(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)


def test_a_resume_needs_the_same_objects(finished: hydrant.Run, capsys: pytest.CaptureFixture[str]) -> None:
    """Their code is not compared, which is said."""
    train(finished.folder, **objects())
    assert "the code, samples and weights of model, data, task are not compared" in capsys.readouterr().out
    words = r"an object of own_parts.OwnModel, passed from Python; .* hydrant.train\(config, model="
    with pytest.raises(hydrant.ConfigError, match=words) as caught:
        train(finished.folder, data=own_data(), task=OwnTask)
    assert caught.value.key == "model"
    words = r"another config, which has no update left: model\.structure"
    with pytest.raises(hydrant.ConfigError, match=words):
        train(finished.folder, **objects() | {"model": OwnModel(width=7)})


@pytest.mark.parametrize(
    "command",
    [
        ("evaluate", "{run}"),
        *of_extension((("export", "{run}"),)),
        ("train", *OWN, "hydra.run.dir={run}"),
        ("train", *OWN, "resume={run}", "name=new"),
    ],
    ids=lambda words: words[0] + words[-1][:4],
)
def test_a_command_refuses_a_run_with_objects(
    finished: hydrant.Run, command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([word.format(run=finished.folder) for word in command]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert "passed from Python; only Python can pass them again: hydrant.train(config, " in last
    assert not Path("outputs").exists()


def test_a_loaded_run_gets_the_objects_again(finished: hydrant.Run) -> None:
    words = r"hydrant.load_run\(folder, model=\.\.\., data=\.\.\., task=\.\.\.\)"
    with pytest.raises(hydrant.ConfigError, match=words):
        hydrant.load_run(finished.folder).evaluate()
    loaded = hydrant.load_run(finished.folder, **objects())
    assert loaded.evaluate() == finished.evaluate()
    assert loaded.evaluate()["val/loss"] == finished.summary["metrics"]["val/loss"]


def test_the_weights_need_the_model_alone(finished: hydrant.Run) -> None:
    loaded = hydrant.load_run(finished.folder, model=own_model())
    for weights in ("last", "ema"):
        model = loaded.model(weights)
        assert not model.training
        pairs = zip(model.parameters(), finished.model(weights).parameters(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)
    with pytest.raises(hydrant.ConfigError, match=r"load_run\(folder, data=\.\.\., task=\.\.\.\)"):
        loaded.evaluate()
    with pytest.raises(hydrant.ConfigError, match=r"load_run\(folder, model=\.\.\.\)"):
        hydrant.load_run(finished.folder).model()


def test_data_sets_of_torch_make_the_same_run() -> None:
    data = own_data()

    def as_items(source: Any) -> TensorDataset:
        return TensorDataset(source.inputs, source.targets)

    train_set, val_set = as_items(data.train), as_items(data.val)
    sources = Data(dataset_source(train_set), dataset_source(val_set), (4,), 2)
    in_memory = losses(train("tensors", data=data))
    assert losses(items := train("items", data=sources)) == in_memory
    assert items.config["data"]["type"] == "torch.utils.data.dataset.TensorDataset", "which the user knows"
    assert losses(train("pair", "model=none", data=(train_set, val_set), model=own_model())) == losses(
        train("sources", data=sources, model=own_model())
    )
    with pytest.raises(hydrant.ConfigError, match=r"train is a TensorDataset, .*hydrant.data.dataset_source"):
        Data(train_set, val_set)  # type: ignore[arg-type]


def test_overrides_are_no_config() -> None:
    with pytest.raises(hydrant.ConfigError, match=r"hydrant.compose\(.*, not a list"):
        hydrant.train(["duration=1ep"])  # type: ignore[arg-type]


Uncounted: Any = type("Uncounted", (), {"batches": None})


class WithExtraState(OwnModel):
    """Has state that is no tensor."""

    def get_extra_state(self) -> dict[str, int]:
        return {"calls": 1}


@pytest.mark.parametrize(
    ("passed", "key", "words"),
    [
        ({"model": "mlp"}, "model", "needs a torch.nn.Module, or what makes one, not a str"),
        ({"model": dict}, "model", "or what makes one, not a dict"),
        ({"model": nn.Linear}, "model", "torch.*Linear is called without arguments: .*; pass lambda"),
        ({"data": replace(own_data(), train=Uncounted())}, "data", "num_samples .* not a Unc"),
        ({"model": WithExtraState(), "data": own_data()}, "model", "_extra_state cannot be saved"),
        *slow(
            ({"data": torch.zeros(3)}, "data", "needs a hydrant.data.Data, .*, not a Tensor"),
            ({"task": nn.Linear(1, 1)}, "task", "a class or a function that takes the model"),
        ),
        ({"task": lambda model: model}, "task", "returns a MLP; it must return a hydrant.tasks.Task"),
        *slow(
            (
                {"task": partial(Classification, label_smoothing=2.0, metrics={})},
                "task",
                "label_smoothing must be between 0.0 and 1.0",
            )
        ),
    ],
)
def test_a_wrong_object_is_refused(workdir: Path, passed: dict[str, Any], key: str, words: str) -> None:
    with pytest.raises(hydrant.ConfigError, match=words) as caught:
        train("run", **passed)
    assert caught.value.key == key
    assert list(workdir.iterdir()) == []


def test_objects_stay_in_this_process() -> None:
    with pytest.raises(hydrant.ConfigError, match="model cannot be passed to other processes"):
        train("run", "parallel.num_processes=2", model=own_model())


class Failing(OwnModel):
    """Fails in training only, so after the run has begun."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.training and len(inputs) == 16:
            raise ZeroDivisionError("a mistake of the user")
        return super().forward(inputs)


def test_an_exception_of_a_part_reaches_the_caller() -> None:
    with pytest.raises(ZeroDivisionError, match="a mistake of the user") as caught:
        train("run", model=Failing(), data=own_data())
    assert caught.traceback[-1].name == "forward"
    assert hydrant.load_run("run").status == "failed"


@pytest.mark.parametrize("is_new", [False, True])
def test_a_part_of_the_users_in_a_model_that_a_function_makes_is_not_trained(is_new: bool) -> None:
    part = nn.Linear(4, 6)
    before = part.weight.detach().clone()

    def make() -> nn.Module:
        layer = nn.Linear(4, 6) if is_new else part
        layer.weight = part.weight
        return nn.Sequential(layer, nn.Linear(6, 2))

    first, second = (losses(train(n, "duration=2", model=make, data=own_data())) for n in ("first", "second"))
    assert first == second
    assert torch.equal(part.weight, before)
