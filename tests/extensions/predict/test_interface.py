"""`hydrant.predict`: any data and any task, also a user's own."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import hydrant
from hydrant import cli
from hydrant.data import Data, InMemorySource, Reader, Source
from hydrant.extensions.tutorials import TwoModels
from hydrant.tasks import Classification, Supervised, Task

CLASSES = ("cat", "dog")
NUM = 12


def source(targets: Tensor) -> InMemorySource:
    return InMemorySource(torch.randn(NUM, 3, generator=torch.Generator().manual_seed(0)), targets)


def read_numbers(files: Sequence[Path]) -> Source:
    """Read an input from each file: three numbers."""
    return InMemorySource(torch.tensor([[float(n) for n in file.read_text().split()] for file in files]), ())


def data_of(targets: Tensor, class_names: tuple[str, ...] | None = None) -> Data:
    reader = Reader(files=read_numbers, suffixes=(".txt",), tensors=lambda x: InMemorySource(x, ()))
    return Data(source(targets), source(targets), (3,), 2, class_names=class_names, reader=reader)


def train(folder: Path, data: Data, model: nn.Module, task: Callable[[nn.Module], Task]) -> hydrant.Run:
    words = ["tracker=local", "duration=2", "global_batch_size=4", "eval_batch_size=5"]
    return hydrant.train(hydrant.compose(words), data=data, model=model, task=task, folder=folder)


def classification(**settings: Any) -> Callable[[nn.Module], Task]:
    return partial(Classification, label_smoothing=0.0, metrics={}, **settings)


def test_a_reader_of_ones_own(tmp_path: Path) -> None:
    targets = torch.arange(NUM) % 2
    run = train(tmp_path / "run", data_of(targets, CLASSES), nn.Linear(3, 2), classification())
    predictions = hydrant.predict(run, "val", probabilities=True)
    assert np.mean(predictions["prediction"] == predictions["target"]) == pytest.approx(
        run.evaluate()["val/accuracy"]
    )
    model, inputs = run.model("last"), source(targets).inputs
    with torch.no_grad():
        assert np.allclose(predictions["logits"], model(inputs), atol=1e-6)
    assert predictions.table["prediction"].tolist() == [CLASSES[n] for n in predictions["prediction"]]
    assert np.array_equal(
        np.float32(predictions.table["probability/dog"]), predictions["probabilities"][:, 1]
    )
    for number, row in enumerate(inputs.tolist()):
        (tmp_path / f"{number:02}.txt").write_text(" ".join(map(str, row)))
    from_files = hydrant.predict(run, sorted(tmp_path.glob("*.txt")))
    assert from_files.names == [str(tmp_path / f"{number:02}.txt") for number in range(NUM)]
    for predicted in (from_files, hydrant.predict(run, inputs.numpy(), batch_size=3)):
        assert np.allclose(predicted["probabilities"], predictions["probabilities"], atol=1e-6)
        assert "target" not in predicted.arrays
    with pytest.raises(hydrant.ConfigError, match="the given inputs has the shape"):
        hydrant.predict(run, inputs[:, :2])


def test_data_in_memory_read_tensors_by_themselves(tmp_path: Path) -> None:
    targets = torch.arange(NUM) % 2
    inputs = source(targets).inputs
    assert isinstance(inputs, Tensor)
    samples = InMemorySource(inputs, targets, mean=(0.5,), std=(2.0,))
    run = train(tmp_path / "run", Data(samples, samples, (3,), 2), nn.Linear(3, 2), classification())
    assert np.allclose(
        hydrant.predict(run, inputs.numpy())["logits"], hydrant.predict(run, "val")["logits"], atol=1e-6
    )
    (tmp_path / "new.txt").touch()
    with pytest.raises(hydrant.ConfigError, match=r"the argument reader of hydrant.data.Data gives it more"):
        hydrant.predict(run, tmp_path / "new.txt")


def test_a_data_set_reads_files_by_data_read(tmp_path: Path) -> None:
    words = [
        "tracker=local",
        "duration=1",
        "data=dataset",
        "data.num_workers=0",
        "allow_targets=[torchvision]",
    ]
    for name in ("train", "val"):
        words += [f"data.{name}._target_=torchvision.datasets.FakeData", f"+data.{name}.size=8"]
        words += [f"+data.{name}.image_size=[1,8,8]"]
    config = hydrant.compose(
        [*words, "global_batch_size=4", "data.input_shape=[1,8,8]", "data.num_classes=10"]
    )
    run = hydrant.train(config, folder=tmp_path / "run")
    (tmp_path / "new.txt").touch()
    message = r"it reads its splits \(train, val\); data.read gives it more"
    with pytest.raises(hydrant.ConfigError, match=message):
        hydrant.predict(run, tmp_path / "new.txt")


def test_labels_have_a_probability_each(tmp_path: Path) -> None:
    targets = torch.eye(2).repeat(NUM // 2, 1)
    data = data_of(targets, CLASSES)
    run = train(tmp_path / "run", data, nn.Linear(3, 2), classification(multi_label=True))
    predictions = hydrant.predict(run, "val")
    table = predictions.table
    assert list(table) == ["index", "target/cat", "target/dog", "probability/cat", "probability/dog"]
    assert np.array_equal(np.float32(table["probability/dog"]), predictions["probabilities"][:, 1])
    assert np.allclose(predictions["probabilities"], 1 / (1 + np.exp(-predictions["logits"])), atol=1e-6)


class Pixels(nn.Module):
    """Logits of 2 classes for each of 3 pixels, in the last dimension or before the pixels."""

    def __init__(self, class_dim: int) -> None:
        super().__init__()
        self.linear, self.class_dim = nn.Linear(3, 6), class_dim

    def forward(self, inputs: Tensor) -> Tensor:
        return self.linear(inputs).view(-1, *((3, 2) if self.class_dim == -1 else (2, 3)))


@pytest.mark.parametrize("class_dim", [1, -1])
def test_a_class_for_each_pixel_has_no_table(class_dim: int, tmp_path: Path) -> None:
    data = data_of(torch.zeros(NUM, 3, dtype=torch.int64), CLASSES)
    run = train(tmp_path / "run", data, Pixels(class_dim), classification(class_dim=class_dim))
    predictions = hydrant.predict(run, "val")
    shapes = {name: array.shape for name, array in predictions.arrays.items()}
    assert shapes == {
        "target": (NUM, 3),
        "prediction": (NUM, 3),
        "probability": (NUM, 3),
        "probabilities": (NUM, 2, 3),
        "logits": (NUM, 2, 3),
    }
    assert np.allclose(predictions["probabilities"].sum(axis=1), 1)
    with pytest.raises(hydrant.ConfigError, match="is no row of a table"):
        hydrant.predict(run, "val", probabilities=True).table


class Distance(Supervised):
    """A task of a user that says what it predicts."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model, loss=nn.functional.mse_loss, metrics={})

    def predict(self, inputs: Tensor) -> Mapping[str, Tensor]:
        outputs = self.model(inputs)
        return {"distance": outputs.norm(dim=1), "far": outputs.norm(dim=1) > 1, "place": outputs}


class Sums(Distance):
    """A task that predicts too few numbers."""

    def predict(self, inputs: Tensor) -> Mapping[str, Tensor]:
        return {"sum": self.model(inputs).sum(dim=0)}


def test_a_task_says_what_it_predicts(tmp_path: Path) -> None:
    data, model = data_of(torch.zeros(NUM, 2)), nn.Linear(3, 2)
    own = hydrant.predict(train(tmp_path / "own", data, model, Distance), "val")
    assert list(own.table) == ["index", "target/0", "target/1", "distance", "far", "place/0", "place/1"]
    assert own["far"].tolist() == (own["distance"] > 1).tolist()
    plain = partial(Supervised, loss=nn.functional.mse_loss, metrics={})
    predicted = hydrant.predict(train(tmp_path / "plain", data, model, plain), "val")
    assert predicted.arrays.keys() == {"target", "prediction"}
    assert np.allclose(predicted["prediction"], own["place"])
    with pytest.raises(hydrant.ConfigError, match=r"predicts .sum. as shape \[2\] for 5 samples"):
        hydrant.predict(train(tmp_path / "sums", data, model, Sums), "val")


def test_two_models_predict_only_what_the_task_says() -> None:
    models = nn.ModuleDict({"first": nn.Linear(3, 2), "second": nn.Linear(3, 2)})
    assert TwoModels(models, metrics={}).predict(torch.zeros(4, 3))["prediction"].shape == (4,)
    with pytest.raises(hydrant.ConfigError, match="the method predict of Task is needed for first, second"):
        Task(models).predict(torch.zeros(4, 3))


@pytest.mark.slow
def test_several_targets_are_named_by_their_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order in which they are given; the numbers of labels are named too."""
    monkeypatch.chdir(tmp_path)
    lines = [f"{n % 7},{n % 2},{n % 3 // 2}" for n in range(40)]
    Path("rooms.csv").write_text("\n".join(["size,bath,roof", *lines]))
    words = ("data=csv", "data.train=rooms.csv", "data.target=[roof,bath]", "data.standardize_targets=false",
             "tracker=local", "duration=2", "global_batch_size=8")  # fmt: skip
    for task, name in (("regression", "prediction"), ("classification", "probability")):
        options = ["task.multi_label=true"] * (name == "probability")
        run = hydrant.train(hydrant.compose([*words, f"task={task}", *options, f"name={name}"]))
        table = hydrant.predict(run, "val").table
        assert list(table) == ["index", "target/roof", "target/bath", f"{name}/roof", f"{name}/bath"]
        assert set(table["target/roof"].tolist()) <= {0, 1}
        assert cli.main(["predict", f"outputs/{name}", "rooms.csv", "--out", f"{name}.csv"]) == 0
        assert Path(f"{name}.csv").read_text().startswith(f"index,{name}/roof,{name}/bath\n")


def test_a_table_gives_numbers_in_the_units_of_its_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [f"{n % 7},{'ab'[n % 2]},{1000 * (n % 7) + 500}" for n in range(40)]
    Path("houses.csv").write_text("\n".join(["rooms,kind,price", *lines]))
    Path("new.csv").write_text("\n".join(["kind,rooms", *(f"{'ab'[n % 2]},{n % 7}" for n in range(40))]))
    words = ["data=csv", "data.train=houses.csv", "data.target=price", "task=regression", "tracker=local",
             "data.classes=false", "duration=2", "global_batch_size=8", "name=houses"]  # fmt: skip
    run = hydrant.train(hydrant.compose(words))
    val = hydrant.predict(run, "val")
    prices = {str(1000 * (n % 7) + 500.0) for n in range(40)}
    assert {str(round(price, 1)) for price in val["target"].ravel().tolist()} <= prices
    new = hydrant.predict(run, "new.csv")
    assert (new.names, new["prediction"].shape[0]) == (list(range(40)), 40)
    evaluated = run.evaluate()["val/mae"]
    std = np.std([1000 * (n % 7) + 500 for n in range(40)])
    error = np.abs(val["prediction"].ravel() - val["target"].ravel()).mean()
    assert error == pytest.approx(evaluated * std, rel=0.1)
    assert cli.main(["predict", "outputs/houses", "new.csv", "houses.csv", "--out", "p.csv"]) == 2
