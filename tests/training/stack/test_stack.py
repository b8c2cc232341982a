"""`Stack`: each lane trains as its run alone, whatever the config, and no lane depends on the others."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from lanes import TINY, differences, trainers_of
from torch import Tensor, nn

from hydrant.batch import tensors_of
from hydrant.errors import NonFiniteError
from hydrant.training.compile import Compilation
from hydrant.training.loop import make_update
from hydrant.training.scratch import build_scratch
from hydrant.training.stack import CannotStack, Stack
from hydrant.training.stack.compilation import LaneCompilation
from hydrant.training.stack.stream import StackedStream

SEEDS = ("seed=0 optimizer.lr=1e-3", "seed=1 optimizer.lr=2e-3", "seed=1 optimizer.lr=3e-3")
VIT = (
    "model=timm", "model.name=vit_tiny_patch16_224", "global_batch_size=8",
    "+model.kwargs={img_size: 8, patch_size: 2, embed_dim: 16, depth: 2, num_heads: 2, drop_path_rate: 0.0}",
)  # fmt: skip
GPT = (
    "experiment=gpt_tiny", "hook=[]", "model.num_layers=1", "model.width=32", "model.num_heads=2",
    "global_batch_size=4", "data.sequence_length=32", "limit_val_samples=4", "tracker=local", "duration=1000",
)  # fmt: skip
BASE = tuple(word for word in TINY if not word.startswith("model"))

CASES: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "mlp": (TINY, SEEDS),
    "dropout": (TINY, ["seed=0 model.dropout=0.1", "seed=0 model.dropout=0.3", "seed=1 model.dropout=0.5"]),
    "no dropout": ((*TINY, "model.dropout=0.0"), SEEDS),
    "batch norm and augmentation": (
        (*BASE, "model=convnet", "model.widths=[4,8]", "data.augment.max_shift=1", "global_batch_size=16"), SEEDS,
    ),
    "attention": ((*BASE, *VIT, "optimizer=sgd"), ["seed=0 optimizer.lr=0.01", "seed=1 optimizer.lr=0.02"]),
    "language": ((*GPT, "optimizer.eps=1e-4"), ["seed=0 optimizer.lr=1e-3", "seed=1 optimizer.lr=2e-3"]),
    "label smoothing": (TINY, [f"seed={n} task.label_smoothing={n / 10}" for n in (1, 2, 3)]),
    "schedules": (
        TINY, ["scheduler=wsd", "scheduler=cosine seed=1", "scheduler=linear scheduler.warmup=5", "scheduler=plateau"],
    ),
    "other fields": ((*TINY, "optimizer=sgd", "+scheduler@schedules.momentum=linear"), SEEDS),
    "weight decay": (
        TINY, [
            "optimizer.weight_decay=0.1 optimizer.betas=[0.9,0.9]",
            "optimizer.weight_decay=1.0 seed=1",
            "optimizer.weight_decay=0.0 seed=1",
        ],
    ),
    "no weight decay": (
        (*TINY, "optimizer=nadam"), ["optimizer.weight_decay=0.0 seed=2", "optimizer.weight_decay=0.1"],
    ),
    "groups": ((*TINY, "param_groups.no_decay=true"), SEEDS),
    "norm": (TINY, [f"max_grad_norm={norm}" for norm in (0.1, 0.5, 10)]),
    "value": (TINY, [f"max_grad_value={value}" for value in (0.001, 0.01, 1.0)]),
    "agc": ((*TINY, "agc=0.01"), SEEDS),
    "ema": ((*TINY, "averaging=ema"), [f"averaging.decay={decay} seed=3" for decay in (0.5, 0.9, 0.99)]),
    "tail": ((*TINY, "averaging=tail", "averaging.start=3"), SEEDS),
    "mixup": ((*TINY, "mixing=mixup"), SEEDS),
    "micro-batches": ((*TINY, "micro_batch_size=16"), SEEDS),
    "growing batches": ((*TINY, "global_batch_size={0: 16, 5: 32}", "micro_batch_size=16"), SEEDS),
    "ignored targets": ((*TINY, "task.ignore_index=3"), SEEDS),
    "skipping": ((*TINY, "skip_non_finite=true"), SEEDS),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_lanes_train_as_alone(case: str) -> None:
    base, lanes = CASES[case]
    found = differences(base, lanes, num_updates=10)
    assert max(found.weights, found.loss, found.buffers) < 1e-5, found


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_lanes_train_as_alone_for_long(case: str) -> None:
    base, lanes = CASES[case]
    found = differences(base, lanes, num_updates=200)
    assert found.loss < 1e-5, found
    # Adam divides by the root of squared gradients: weights whose gradients are almost 0 amplify rounding.
    assert max(found.weights, found.buffers) < (2e-3 if case == "language" else 1e-5), found


@pytest.mark.parametrize("precision", ["bf16", "bf16_true"])
def test_lanes_train_in_bfloat16(precision: str) -> None:
    assert differences((*TINY, f"precision={precision}"), SEEDS, num_updates=10).loss < 1e-2


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


@pytest.mark.parametrize("averaging", ["averaging=ema", "averaging=tail averaging.every=2"])
def test_averages_do_not_move_in_skipped_updates(averaging: str) -> None:
    runs = [[*TINY, "skip_non_finite=true", *averaging.split(), f"seed={seed}"] for seed in range(2)]
    with trainers_of(*runs) as lanes:
        stack = Stack(lanes)
        stack.update(measure=False)
        before = [{k: v.clone() for k, v in lane.plan.averaging.state_dict().items()} for lane in lanes]
        with torch.no_grad():
            next(iter(lanes[1].task.parameters())).fill_(math.nan)
        stack.update(measure=False)
        stack.update(measure=False)
        moved = [
            any(not torch.equal(v, lane.plan.averaging.state_dict()[k]) for k, v in state.items())
            for lane, state in zip(lanes, before, strict=True)
        ]
        assert moved == [True, False]


@pytest.mark.parametrize("optimizer", ["adamw", "nadam", "sgd"])
def test_a_lane_may_skip_its_first_update(optimizer: str) -> None:
    runs = [[*TINY, "skip_non_finite=true", f"optimizer={optimizer}", f"seed={seed}"] for seed in range(3)]
    with trainers_of(*runs, *runs) as trainers:
        lanes, alone = trainers[:3], trainers[3:]
        weights = [next(iter(trainers[n].task.parameters())) for n in (0, 3)]
        values = weights[0].detach().clone()
        for weight in weights:
            weight.data.fill_(math.nan)
        stack = Stack(lanes)
        for update in range(6):
            stack.update(measure=False)
            for trainer in alone:
                make_update(trainer, measure=False)
            if update == 1:
                for weight in (weights[0], weights[1]):
                    weight.data.copy_(values)
        for lane, trainer in zip(lanes, alone, strict=True):
            assert lane.state.num_skipped == trainer.state.num_skipped
            for p, q in zip(lane.task.parameters(), trainer.task.parameters(), strict=True):
                assert torch.allclose(p, q, rtol=1e-4, atol=1e-6)


def test_the_other_lanes_go_on_when_the_first_has_failed() -> None:
    runs = [[*TINY, "skip_non_finite=true", "max_skipped=1", f"seed={seed}"] for seed in range(2)]
    with trainers_of(*runs, *runs) as trainers:
        lanes, alone = trainers[:2], trainers[2:]
        lanes[0].task.get_parameter("model.classifier.weight").data.fill_(math.nan)
        stack = Stack(lanes)
        for _ in range(5):
            stack.update(measure=False)
            make_update(alone[1], measure=False)
        assert stack.num_updates == lanes[1].state.num_updates == 5
        for p, q in zip(lanes[1].task.parameters(), alone[1].task.parameters(), strict=True):
            assert torch.allclose(p, q, rtol=1e-5, atol=1e-7)


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
            assert (
                one.optimizers.state_dict()["optimizers"].keys()
                == same.optimizers.state_dict()["optimizers"].keys()
            )


def test_a_lane_reads_the_samples_of_its_run() -> None:
    runs = [[*TINY, "data.augment.max_shift=1", f"seed={seed}", "micro_batch_size=32"] for seed in (0, 1, 1)]
    with trainers_of(*runs, *runs) as trainers:
        stream = StackedStream(trainers[:3])
        for update in (0, 1, 2, 1, 70, 71):
            stacked = list(stream.micro_batches(update))
            for lane, alone in enumerate(trainers[3:]):
                for ours, theirs in zip(stacked, alone.stream.micro_batches(update), strict=True):
                    assert all(
                        torch.equal(a[lane], b)
                        for a, b in zip(tensors_of(ours), tensors_of(theirs), strict=True)
                    )


def test_a_lane_that_diverges_skips_its_updates_alone() -> None:
    runs = [[*TINY, "skip_non_finite=true", "max_skipped=2", f"seed={seed}"] for seed in range(3)]
    with trainers_of(*runs, *runs) as trainers:
        lanes, alone = trainers[:3], trainers[3:]
        stack = Stack(lanes)
        stack.update(measure=False)
        for trainer in alone:
            make_update(trainer, measure=False)
        with torch.no_grad():
            next(iter(lanes[1].task.parameters())).fill_(math.nan)
        results = [stack.update(measure=False)[1] for _ in range(3)]
        assert [getattr(result, "status", None) for result in results] == ["not_finite", "not_finite", None]
        assert isinstance(results[2], NonFiniteError)
        for lane, trainer in ((lanes[0], alone[0]), (lanes[2], alone[2])):
            for _ in range(3):
                make_update(trainer, measure=False)
            for p, q in zip(lane.task.parameters(), trainer.task.parameters(), strict=True):
                assert torch.allclose(p, q, rtol=1e-5, atol=1e-7)


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
    [(Branching, "the model Branching|model .Branching."), (Drawing, "Drawing draws random numbers")],
)
def test_what_cannot_be_mapped_is_named(model: type[nn.Module], words: str) -> None:
    with trainers_of(TINY, [*TINY, "seed=1"]) as lanes:
        for lane in lanes:
            replaced = model()
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
        lanes = [build_scratch(plan) for plan in plans]
        stack, other = Stack(lanes), Stack(eager)
        for _ in range(6):
            stack.update(measure=True)
            other.update(measure=True)
        report = lanes[1].plan.compilation.report()
        assert (report.graphs, len(report.recompiles), len(report.graph_breaks)) == (1, 0, 0)
        for lane, alone in zip(lanes, eager, strict=True):
            for p, q in zip(lane.task.parameters(), alone.task.parameters(), strict=True):
                assert torch.allclose(p, q, rtol=1e-5, atol=1e-6)
