"""What a plain loop trains is trained here too, to the same weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from marks import of_extension, slow
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.utils.data import TensorDataset
from training_runs import interrupt_at

import hydrant
from hydrant import cli, seeding
from hydrant.batch import Batch, Outcome
from hydrant.data import BatchSource, Data, InMemorySource, dataset_source
from hydrant.tasks import Supervised, Task

pytestmark = pytest.mark.usefixtures("workdir")

NUM_UPDATES, LR, MOMENTUM = 6, 0.05, 0.9
WORDS = ("tracker=local", "task=regression", f"duration={NUM_UPDATES}", "global_batch_size=all", "optimizer=sgd",
         f"optimizer.lr={LR}", "optimizer.fused=false", "scheduler=constant", "eval_every=2", "log_every=2",
         "save_every=2")  # fmt: skip
POINTS = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
TRAIN, VAL = POINTS[:40], POINTS[40:]


class Energy(nn.Module):
    """Gives forces: derivatives of an energy, as interatomic potentials do."""

    def __init__(self) -> None:
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(3, 32), nn.SiLU(), nn.Linear(32, 1))

    def forward(self, positions: Tensor) -> Tensor:
        with torch.enable_grad():
            positions = positions.detach().requires_grad_(True)
            return -torch.autograd.grad(self.energy(positions).sum(), positions, create_graph=self.training)[
                0
            ]


def train(
    model: Any, targets: Callable[[Tensor], Tensor], *words: str, folder: str = "run", **others: Any
) -> hydrant.Run:
    data = tuple(TensorDataset(points, targets(points)) for points in (TRAIN, VAL))
    return hydrant.train(hydrant.compose([*WORDS, *words]), model=model, data=data, folder=folder, **others)


def forces(points: Tensor) -> Tensor:
    return -2 * points


def plain_loop(
    make: Callable[[], nn.Module], targets: Tensor, loss: Any, num: int = 1, part: Any = lambda _: slice(None)
) -> nn.Module:
    """Return the model after training on `num` micro-batches an update, of a part of the samples."""
    seeding.seed_process(0, seeding.MODEL)
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
    for chosen in map(part, range(NUM_UPDATES)):
        optimizer.zero_grad()
        for inputs, wanted in zip(TRAIN[chosen].chunk(num), targets[chosen].chunk(num), strict=True):
            (loss(model(inputs).float(), wanted) / num).backward()
        optimizer.step()
    return model


def assert_equal(run: hydrant.Run, weights: Sequence[Tensor], error: float = 1e-6) -> None:
    torch.testing.assert_close([*run.model("last").parameters()], [*weights], rtol=0, atol=error)


def test_a_model_that_takes_a_derivative() -> None:
    run = train(Energy, forces)
    assert_equal(run, list(plain_loop(Energy, forces(TRAIN), F.mse_loss).parameters()))
    assert run.summary["flops_per_sample"] == 2 * 2 * (3 * 32 + 32)  # of the energy and of its derivative


class Unguarded(Energy):
    """Takes a derivative that an evaluation does not compute."""

    def forward(self, positions: Tensor) -> Tensor:
        positions = positions.detach().requires_grad_(True)
        return -torch.autograd.grad(self.energy(positions).sum(), positions, create_graph=True)[0]


def test_a_derivative_in_an_evaluation_needs_gradients() -> None:
    message = (
        r"^model: fails in a trial of an evaluation, .*does not require grad.* \(at test_right.*enable_grad"
    )
    with pytest.raises(hydrant.ConfigError, match=message):
        train(Unguarded, forces)


class Classifier(nn.Linear):
    def __init__(self) -> None:
        super().__init__(3, 1)


class Normed(nn.Module):
    """Has weights that torch computes from others: no copy of it can be made once it was called."""

    def __init__(self) -> None:
        super().__init__()
        with pytest.warns(FutureWarning, match="weight_norm"):
            self.first = nn.utils.weight_norm(nn.Linear(3, 4))
        self.last = prune.l1_unstructured(nn.Linear(4, 3), "weight", 0.5)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(self.first(inputs))


class Recurrent(nn.Module):
    """Is bound to its number of samples, by a state of so many rows."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.state = nn.Linear(3, 3), torch.ones(20, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.linear(inputs) + self.linear(inputs + self.state)


class Frozen(nn.Module):
    """Has a part that its author put into evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        part = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))
        self.extractor, self.head = part.requires_grad_(False).eval(), nn.Linear(8, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.extractor(inputs))


def is_positive(points: Tensor) -> Tensor:
    return (points.sum(dim=1) > 0).float()


def entropy_of_column(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(outputs[:, 0], targets)


def entropy_of_squeezed(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(outputs.squeeze(), targets)


@pytest.mark.parametrize(
    ("make", "targets", "loss", "words"),
    [
        (Classifier, is_positive, entropy_of_column, ()),
        (Classifier, is_positive, entropy_of_squeezed, ()),
        (Normed, forces, F.mse_loss, ()),
        (Frozen, forces, F.mse_loss, ("averaging=tail",)),
        *of_extension(*slow((Frozen, forces, F.mse_loss, ("compile=aot_eager",)))),
        (Recurrent, forces, F.mse_loss, ("micro_batch_size=20", "eval_batch_size=20")),
    ],
)
def test_programs_of_users(make: Any, targets: Any, loss: Any, words: tuple[str, ...]) -> None:
    run = train(make, targets, *words, task=partial(Supervised, loss=loss, metrics={}))
    model = plain_loop(make, targets(TRAIN), loss, 2 if make is Recurrent else 1)
    assert_equal(run, list(model.parameters()))
    torch.testing.assert_close([*run.model("last").buffers()], [*model.buffers()], rtol=0, atol=0)


class Sparse(nn.Module):
    """Has sparse gradients, and so a sparse momentum."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 3, sparse=True)

    def forward(self, points: Tensor) -> Tensor:
        return self.table(points.abs().sum(1).long())


@pytest.mark.parametrize("make", [Energy, *slow(Frozen, Sparse)])
def test_runs_continue_bit_for_bit(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        interrupt_at(patch, 3)
        with pytest.raises(KeyboardInterrupt):
            train(make, forces)
    resumed, whole = train(make, forces), train(make, forces, folder="whole")
    torch.testing.assert_close(*(r.model("last").state_dict() for r in (resumed, whole)), rtol=0, atol=0)
    with resumed.trainer() as trainer:
        frozen = [name for name, module in trainer.model.named_children() if not module.training]
        assert frozen == (["extractor"] if make is Frozen else [])


class Waves(nn.Module):
    """Has a complex weight in its last layer alone."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 3, dtype=torch.complex64))

    def forward(self, points: Tensor) -> Tensor:
        return (points.to(torch.complex64) @ self.weight).real


def test_entries_of_complex_gradients_are_not_clipped_in_the_last_layer_either() -> None:
    with pytest.raises(hydrant.ConfigError, match=r"^max_grad_value: .*complex.*max_grad_norm"):
        train(Waves, forces, "max_grad_value=1")


def of_pairs(outputs: Tensor, targets: Tensor) -> Tensor:
    """InfoNCE: the other samples of the batch are the negatives."""
    return F.cross_entropy(outputs @ targets.T, torch.arange(len(outputs)))


class OfMicroBatch(Supervised):
    """Computes its loss in a `forward` of its own."""

    def forward(self, batch: Batch) -> Outcome:
        return super().forward(batch)


@pytest.mark.extension
def test_a_loss_of_a_whole_batch_has_one_size(capsys: pytest.CaptureFixture[str]) -> None:
    task = partial(Supervised, loss=of_pairs, metrics={}, loss_of_batch=True)
    sizes = {5: "small", 20: "large"}
    runs = [train(Frozen, forces, f"eval_batch_size={n}", task=task, folder=sizes[n]) for n in sizes]
    assert [run.summary["loss_of_batch"] for run in runs] == [*sizes]
    capsys.readouterr()
    assert cli.main(["compare", *sizes.values()]) == 0
    assert "val/loss is another quantity with each loss_of_batch" in capsys.readouterr().out
    train(
        Frozen, forces, "eval_batch_size=20", "duration=30", "resume_strict=false", task=task, folder="small"
    )
    assert "the best val/loss is of other validation samples or batches" in capsys.readouterr().out
    task = partial(OfMicroBatch, **task.keywords)
    with pytest.raises(hydrant.ConfigError, match=r"^micro_batch_size: splits the batch, but the loss"):
        train(Frozen, forces, "micro_batch_size=10", task=task)


class Hidden(nn.Module):
    """Carries state from update to update in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("state", torch.zeros(3))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = self.linear(inputs) + self.state
        if self.training:
            self.state = outputs.mean(0).detach()
        return outputs


@pytest.mark.extension
@pytest.mark.parametrize("words", [(), ("micro_batch_size=20",)])
def test_a_line_names_the_buffers_that_micro_batches_hand_on(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    train(Hidden, forces, "duration=1", *words)
    line = "buffers     training writes model.state: each micro-batch gets that of the one before\n"
    assert (line in capsys.readouterr().out) == bool(words)


class FrozenParts(nn.Module):
    """Puts a part into `eval()` in its own method `train`, and has another one in `eval()` from the start."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.other, self.linear = nn.BatchNorm1d(3), nn.BatchNorm1d(3).eval(), nn.Linear(3, 3)

    def train(self, mode: bool = True) -> FrozenParts:
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, points: Tensor) -> Tensor:
        return self.linear(self.other(self.norm(points)))


class Taught(Supervised):
    """Puts its teacher into `eval()` in its own method `train`."""

    def __init__(self, model: nn.Module, **others: Any) -> None:
        super().__init__(model, **others)
        self.teacher = nn.Dropout()

    def train(self, mode: bool = True) -> Taught:
        super().train(mode)
        self.teacher.eval()
        return self

    def forward(self, batch: Batch) -> Outcome:
        assert not self.teacher.training
        return super().forward(batch)


def test_parts_that_the_model_or_the_task_puts_into_eval_stay_there() -> None:
    model: Any = train(FrozenParts, forces, task=partial(Taught, loss=F.mse_loss, metrics={})).model("last")
    for norm in (model.norm, model.other):
        assert torch.equal(norm.running_mean, torch.zeros(3))
        assert not norm.num_batches_tracked


def of_loader(num_updates: int) -> slice:
    return slice(15 * (num_updates % 3), 15 * (num_updates % 3 + 1))  # the last of an epoch has 10 samples


def train_on(
    make: Callable[[int], Any], *words: str, model: Any = Frozen, folder: str = "run"
) -> hydrant.Run:
    data = Data(BatchSource(make, num_samples=45), InMemorySource(VAL, forces(VAL)))
    config = hydrant.compose([*WORDS, "global_batch_size=15", "keep_best=0", *words])
    return hydrant.train(config, model=model, data=data, folder=folder)


def test_a_smaller_last_batch_is_that_of_a_plain_loop() -> None:
    run = train_on(lambda num_updates: (TRAIN[of_loader(num_updates)], forces(TRAIN[of_loader(num_updates)])))
    assert_equal(run, list(plain_loop(Frozen, forces(TRAIN), F.mse_loss, part=of_loader).parameters()), 0)
    assert not (run.folder / "checkpoints/best").exists()


def test_batches_that_a_function_draws_continue_bit_for_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn(num_updates: int) -> tuple[Tensor, Tensor]:
        points = torch.randn(num_updates + 2, 3)
        return points, forces(points)

    with monkeypatch.context() as patch:
        interrupt_at(patch, 3)
        with pytest.raises(KeyboardInterrupt):
            train_on(drawn)
    torch.testing.assert_close(
        *(train_on(drawn, folder=folder).model("last").state_dict() for folder in ("run", "whole")),
        rtol=0,
        atol=0,
    )


def test_the_samples_of_own_batches_are_limited_and_evaluated() -> None:
    def made(num_updates: int) -> tuple[Tensor, Tensor]:
        points = POINTS[10 * num_updates :][:10]
        return points, forces(points)

    source, words = (
        BatchSource(made, num_samples=25),
        [*WORDS, "limit_train_samples=15", "global_batch_size=15"],
    )
    first = source.subset(range(15))
    limited, expected = (
        hydrant.train(hydrant.compose(words), model=Frozen, data=Data(train, source), folder=name)
        for name, train in {"limited": source, "first": first}.items()
    )
    assert isinstance(first.inputs, Tensor)
    assert torch.equal(first.inputs, POINTS[:15])
    assert_equal(limited, list(expected.model("last").parameters()), 0)
    errors = limited.model("last")(POINTS[:25]) - forces(POINTS[:25])
    assert limited.evaluate("val")["val/mse"] == pytest.approx(errors.square().mean().item(), rel=1e-5)
    with pytest.raises(hydrant.HydrantError, match="batch of update 7 has no samples"):
        source.micro_batches(6)


class OfGraph(nn.Linear):
    """Needs all 40 samples at once: the nodes of a graph."""

    def __init__(self) -> None:
        super().__init__(3, 3)

    def forward(self, input: Tensor) -> Tensor:
        return torch.ones(40, 40) / 40 @ super().forward(input)


def test_without_evaluations_a_model_may_need_all_samples() -> None:
    run = train_on(lambda _: (TRAIN, forces(TRAIN)), "eval_every=null", model=OfGraph)
    assert_equal(run, list(plain_loop(OfGraph, forces(TRAIN), F.mse_loss).parameters()), 0)


class Doubled(nn.Sequential):
    """Computes in float64."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.double())


def test_outputs_in_float64_train_on_targets_in_float32() -> None:
    task = partial(Supervised, loss=nn.HuberLoss(), metrics={})
    model = train(lambda: Doubled(nn.Linear(3, 3).double()), forces, task=task).model("last")
    targets = forces(TRAIN).double()
    plain = plain_loop(
        lambda: Doubled(nn.Linear(3, 3).double()), targets, lambda x, y: F.huber_loss(x.double(), y)
    )
    for weight, expected in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(weight, expected, rtol=1e-4)


class Graphs(list[Any]):
    """A data set of graphs: the features of 3 to 5 nodes, and a number."""

    def __init__(self, number: int) -> None:
        generator = torch.Generator().manual_seed(number)
        super().__init__(
            (torch.randn(3 + n % 3, 3, generator=generator), float(n % 4)) for n in range(number)
        )


def nodes_in_a_row(items: Sequence[Any]) -> tuple[Any, Tensor]:
    graph = torch.cat([torch.full((len(nodes),), place) for place, (nodes, _) in enumerate(items)])
    inputs = {"nodes": torch.cat([nodes for nodes, _ in items]), "graph": graph}
    return inputs, torch.tensor([target for _, target in items])


class Pooling(nn.Linear):
    def forward(self, input: Any) -> Tensor:
        outputs = super().forward(input["nodes"])
        return outputs.new_zeros(int(input["graph"].max()) + 1, 1).index_add(0, input["graph"], outputs)


class OfGraphs(Task):
    """Counts graphs."""

    def forward(self, batch: Batch) -> Outcome:
        loss = F.mse_loss(self.model(batch.inputs)[:, 0], batch.targets)
        return Outcome({"loss": loss}, {}, (), len(batch.targets))


def test_batches_whose_rows_are_no_samples_train_and_are_evaluated_by_the_task_s_count() -> None:
    data = Data(*(dataset_source(Graphs(number), collate=nodes_in_a_row) for number in (12, 8)))
    words = [word for word in WORDS if not word.startswith("task=")] + ["eval_batch_size=3"]
    run = hydrant.train(
        hydrant.compose(words), model=lambda: Pooling(3, 1), data=data, task=OfGraphs, folder="run"
    )
    seeding.seed_process(0, seeding.MODEL)
    model = Pooling(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
    (inputs, targets), (unseen, wanted) = (nodes_in_a_row(Graphs(number)) for number in (12, 8))
    for _ in range(NUM_UPDATES):
        optimizer.zero_grad()
        F.mse_loss(model(inputs)[:, 0], targets).backward()
        optimizer.step()
    assert_equal(run, list(model.parameters()))
    loss = F.mse_loss(model(unseen)[:, 0], wanted).item()
    assert run.summary["metrics"]["val/loss"] == pytest.approx(loss, rel=1e-5)
