"""`Stack`: each lane trains as its run alone, whatever the config, and no lane depends on the others."""

from collections.abc import Iterable, Sequence

import pytest
import torch
from lanes import BASE, CASES, SEEDS, TINY, differences, trainers_of
from marks import slow_but
from torch import Tensor, nn

from benchmarks.stack_updates import stack_of
from hydrant.batch import Batch, tensors_of
from hydrant.extensions.stacked import optimizer as optimizer_module
from hydrant.extensions.stacked.forward import LaneCompilation
from hydrant.extensions.stacked.lanes import CannotStack, StackedTensors
from hydrant.extensions.stacked.optimizer import StackedSteps
from hydrant.extensions.stacked.stack import Stack, StackedStream
from hydrant.optimizers.kernels import Clipping
from hydrant.training.compilation import Compilation
from hydrant.training.loop import make_update
from hydrant.training.prepare.build import build
from hydrant.training.trainer import TrainState


@pytest.mark.parametrize(
    "case",
    slow_but(("dropout", "batch norm and augmentation", "documents", "groups", "micro-batches"), CASES),
)
def test_lanes_train_as_alone(case: str) -> None:
    base, lanes = CASES[case]
    found = differences(base, lanes, num_updates=10)
    assert max(found.weights, found.loss, found.buffers) < 1e-5, found


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_lanes_train_as_alone_for_long(case: str) -> None:
    base, lanes = CASES[case]
    found = differences(base, lanes, num_updates=200)
    assert max(found.weights, found.loss, found.buffers) < 1e-4, (
        found
    )  # rounding grows, on some processors to 2e-5


@pytest.mark.parametrize(("precision", "most"), [("bf16", 1e-2), ("bf16_true", 1e-2), ("fp64", 1e-9)])
def test_lanes_train_in_other_formats(precision: str, most: float) -> None:
    assert differences((*TINY, f"precision={precision}"), SEEDS, num_updates=10).loss < most


def test_a_part_in_evaluation_mode_stays_there() -> None:
    base, lanes = CASES["batch norm and augmentation"]
    found = differences(base, lanes, 4, lambda trainer: trainer.model.get_submodule("stages").eval())
    assert max(found.weights, found.loss) < 1e-5, found
    assert found.buffers == 0


def test_limits_in_bfloat16_are_those_of_the_run() -> None:
    limits = (0.3, 0.7)
    runs = [[*TINY, "precision=bf16_true", f"max_grad_norm={limit}"] for limit in limits]
    with trainers_of(*runs) as lanes:
        tensors = StackedTensors(lanes, set())
        (weights,) = tensors.trained()
        weights.rows.grad = torch.zeros_like(weights.rows)
        weights.rows.grad[:, 0] = 1.0  # a norm that no dtype rounds
        StackedSteps(lanes, tensors).clip(measure=False)
        for row, limit in zip(weights.rows.grad, limits, strict=True):
            alone = nn.Parameter(torch.zeros_like(row))
            alone.grad = torch.zeros_like(row)
            alone.grad[0] = 1.0
            Clipping(max_norm=limit)([alone], alone.grad.norm())
            assert torch.equal(row, alone.grad)


def test_averages_of_lanes_are_those_of_runs_alone() -> None:
    runs = [[*TINY, "averaging=ema", f"averaging.decay={decay}"] for decay in (0.5, 0.9)]
    with trainers_of(*runs, *runs) as trainers:
        stack = Stack(trainers[:2])
        for _ in range(8):
            stack.update(measure=False)
            for trainer in trainers[2:]:
                make_update(trainer, measure=False)
        for lane, alone in zip(trainers[:2], trainers[2:], strict=True):
            ours, theirs = lane.plan.averaging.state_dict(), alone.plan.averaging.state_dict()
            assert ours.keys() == theirs.keys()
            assert all(torch.allclose(ours[name], theirs[name], rtol=1e-5, atol=1e-7) for name in ours)


def test_lanes_of_stack_that_can_no_longer_step_together_step_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such as with a lane that joins them. The weights of a lane have shared a count of steps until then."""
    runs = [[*TINY, "optimizer=nadam", f"seed={seed}"] for seed in range(2)]

    def refused(*_: object) -> None:
        raise CannotStack("it is a test")

    with trainers_of(*runs, *runs) as trainers:
        lanes, alone = trainers[:2], trainers[2:]
        for part in range(2):
            stack = Stack(lanes)
            for _ in range(3):
                stack.update(measure=False)
                for trainer in alone:
                    make_update(trainer, measure=False)
            if part == 0:
                monkeypatch.setattr(optimizer_module, "StackedOptimizer", refused)
        for lane, trainer in zip(lanes, alone, strict=True):
            for p, q in zip(lane.task.parameters(), trainer.task.parameters(), strict=True):
                assert torch.allclose(p, q, rtol=1e-4, atol=1e-6)


def test_no_lane_depends_on_the_others() -> None:
    weights = list[list[Tensor]]()
    for others in ([1], [1, 2, 3, 4]):
        runs = [[*TINY, f"seed={seed}", f"optimizer.lr={1e-3 * (seed + 1)}"] for seed in (0, *others)]
        with trainers_of(*runs) as lanes:
            stack = Stack(lanes)
            for _ in range(8):
                stack.update(measure=True)
            weights.append([p.detach().clone() for p in lanes[0].task.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*weights, strict=True))


def test_a_lane_that_leaves_changes_no_other() -> None:
    runs = [[*TINY, f"seed={seed}"] for seed in range(3)]
    with trainers_of(*runs, *runs) as trainers:
        whole, shrinking = trainers[:3], trainers[3:]
        stack, other = Stack(whole), Stack(shrinking)
        for update in range(8):
            stack.update(measure=False)
            if update == 4:
                other = Stack(shrinking[:2])
            other.update(measure=False)
        for one, same in zip(whole[:2], shrinking[:2], strict=True):
            assert all(
                torch.equal(p, q) for p, q in zip(one.task.parameters(), same.task.parameters(), strict=True)
            )
            states = [run.optimizers.state_dict()["optimizers"].keys() for run in (one, same)]
            assert states[0] == states[1]


def assert_lanes_read(stacked: Sequence[Sequence[Batch]], alone: Sequence[Sequence[Iterable[Batch]]]) -> None:
    """Assert that the micro-batches of updates are those of the lanes alone."""
    for lane, of_lane in enumerate(alone):
        for ours, theirs in zip(stacked, of_lane, strict=True):
            for one, other in zip(ours, theirs, strict=True):
                pairs = zip(tensors_of(one), tensors_of(other), strict=True)
                assert all(torch.equal(a[lane], b) for a, b in pairs)


def test_a_lane_reads_the_samples_of_its_run() -> None:
    runs = [[*TINY, "data.augment.max_shift=1", f"seed={seed}", "micro_batch_size=32"] for seed in (0, 1, 1)]
    with trainers_of(*runs, *runs) as trainers:
        stream = StackedStream(trainers[:3])
        for update in (0, 1, 2, 1, 70, 71):
            alone = [[alone.stream.micro_batches(update)] for alone in trainers[3:]]
            assert_lanes_read([list(stream.micro_batches(update))], alone)


@pytest.mark.parametrize(("data", "num_chunks"), [("", 3), ("data=synthetic data.input_shape=[3,88,88]", 8)])
def test_lanes_on_the_same_data_are_read_by_one_call(
    data: str, num_chunks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*BASE, *data.split(), "micro_batch_size=32", "limit_train_samples=200"]
    with stack_of(words, 5, num_seeds=3) as stack:
        reader = type(stack.lanes[0].stream.reader)
        alone = [list(map(lane.stream.micro_batches, (0, 1, 5, 70))) for lane in stack.lanes]
        expected = [[list(batches) for batches in of_lane] for of_lane in alone]
        read, calls = reader.train_batch, list[int]()

        def counted(this: object, draws: Tensor) -> Batch:
            calls.append(len(draws))
            return read(this, draws)

        monkeypatch.setattr(reader, "train_batch", counted)
        stream = StackedStream(stack.lanes)
        stacked = [list(stream.micro_batches(update)) for update in (0, 1, 5, 70)]
    assert len(calls) == 1 + num_chunks  # first one micro-batch, whose size decides that of chunks
    assert_lanes_read(stacked, expected)


@pytest.mark.parametrize("sizes", ["all", "{0: 20, 2: 200}"])
def test_a_chunk_holds_few_samples_however_many_an_update_has(
    sizes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*BASE, f"global_batch_size={sizes}", "micro_batch_size=20"]
    with stack_of(words, 3, num_seeds=3) as stack:
        expected = [[list(lane.stream.micro_batches(update)) for update in range(4)] for lane in stack.lanes]
        reader = type(stack.lanes[0].stream.reader)
        read, counts = reader.train_batch, list[int]()

        def counted(this: object, draws: Tensor) -> Batch:
            counts.append(len(draws))
            return read(this, draws)

        monkeypatch.setattr(reader, "train_batch", counted)
        monkeypatch.setattr("hydrant.extensions.stacked.stack._CHUNK_BYTES", 3 * 3 * 20 * 64 * 4)
        stream = StackedStream(stack.lanes)
        next(iter(stream.micro_batches(0)))  # what is read in part is read again
        stacked = [list(stream.micro_batches(update)) for update in range(4)]
    assert max(counts) == 3 * 3 * 20  # of three lanes, three micro-batches
    assert_lanes_read(stacked, expected)


class Branching(nn.Module):
    """Branches on a value."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        logits = self.linear(inputs.flatten(1))
        return logits if logits.sum() > 0 else -logits


class Drawing(nn.Module):
    """Draws random numbers inside a kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        mask = torch.rrelu(self.linear(inputs.flatten(1)), training=True)
        return mask


@pytest.mark.parametrize(
    ("model", "words"),
    [(Branching, r"Branching cannot run .* at test_stack\.py"), (Drawing, "Drawing draws random numbers")],
)
def test_what_cannot_be_mapped_is_named(model: type[nn.Module], words: str) -> None:
    with trainers_of(TINY, [*TINY, "seed=1"]) as lanes:
        for lane in lanes:
            replaced = model().to(lane.plan.world.device)
            lane.task.model = replaced
            optimizer = lane.optimizers.entries["main"].optimizer
            optimizer.param_groups[0]["params"] = list(replaced.parameters())
        with pytest.raises(CannotStack, match=words):
            Stack(lanes).update(measure=False)


def test_a_compiled_stack_is_one_graph() -> None:
    runs = [
        [*TINY, "compile=default", "compile.backend=aot_eager", f"optimizer.lr={lr}"] for lr in (1e-3, 1e-2)
    ]
    with trainers_of(*[[*TINY, f"optimizer.lr={lr}"] for lr in (1e-3, 1e-2)]) as eager:
        import dataclasses

        from lanes import plan_of

        shared: Compilation = plan_of(runs[0]).compilation
        plans = [dataclasses.replace(plan_of(run), compilation=LaneCompilation(shared)) for run in runs]
        lanes = [build(plan, TrainState()) for plan in plans]
        stack, other = Stack(lanes), Stack(eager)
        for _ in range(6):
            stack.update(measure=True)
            other.update(measure=True)
        report = lanes[1].plan.compilation.report()
        assert (report.graphs, len(report.recompiles), len(report.graph_breaks)) == (1, 0, 0)
        for lane, alone in zip(lanes, eager, strict=True):
            for p, q in zip(lane.task.parameters(), alone.task.parameters(), strict=True):
                assert torch.allclose(p, q, rtol=1e-5, atol=1e-6)
