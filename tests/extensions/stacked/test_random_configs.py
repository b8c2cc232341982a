"""Random stackable configs: lanes that differ in what may differ train as their runs alone."""

import random
from collections.abc import Mapping, Sequence

import pytest
from lanes import TINY, differences
from marks import slow_but

from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.sweeps.preflight import program_of

PROGRAMS: Mapping[str, Sequence[str]] = {
    "optimizer": ["sgd", "adam", "adamw", "nadam", "adamax", "lamb", "adamw optimizer.fused=false"],
    "model": [
        "model=mlp model.hidden=[16] model.dropout=0.1",
        "model=mlp model.hidden=[16,8] model.dropout=0.0",
        "model=convnet model.widths=[4,8] model.dropout=0.1",
        "model=deep_linear",
    ],
    "data": ["", "data.augment.max_shift=1", "data.augment.flip=true"],
    "batches": ["global_batch_size=32", "global_batch_size=32 micro_batch_size=8"],
    "averaging": ["", "averaging=ema", "averaging=tail averaging.start=2"],
    "mixing": ["", "mixing=mixup", "mixing=cutmix"],
    "groups": ["", "param_groups.no_decay=true"],
}
"""What is the same in all lanes: for each subject, alternatives of overrides."""

CLIPPING = ["", "max_grad_norm={}", "max_grad_value={}"]
SCHEDULES = ["constant", "cosine", "linear", "wsd", "step", "polynomial", "cosine scheduler.warmup=3"]


def draw_case(seed: int) -> tuple[list[str], list[str]]:
    """Return the words of a program, and those of three lanes of it."""
    generator = random.Random(seed)
    chosen = {subject: generator.choice(words) for subject, words in PROGRAMS.items()}
    has_dropout, clipping = "dropout=0.1" in chosen["model"], generator.choice(CLIPPING)
    base = [w for w in TINY if not w.startswith("model")] + [
        f"optimizer={chosen.pop('optimizer')}",
        *chosen.values(),
    ]
    lanes = list[str]()
    for _ in range(3):
        words = [
            f"seed={generator.randrange(3)}",
            f"optimizer.lr={10 ** generator.uniform(-4, -2):.4g}",
            f"optimizer.weight_decay={generator.choice([0.01, 0.1])}",
            f"scheduler={generator.choice(SCHEDULES)}",
            f"task.label_smoothing={generator.choice([0.1, 0.2])}",
            clipping.format(f"{10 ** generator.uniform(-3, 0):.4g}"),
        ]
        if has_dropout:
            words.append(f"model.dropout={generator.uniform(0.05, 0.5):.3f}")
        if "averaging=ema" in chosen["averaging"]:
            words.append(f"averaging.decay={generator.uniform(0.5, 0.99):.3f}")
        lanes.append(" ".join(words))
    return " ".join(base).split(), lanes


def check_case(seed: int, num_updates: int) -> None:
    base, lanes = draw_case(seed)
    configs = [check(compose([*base, *lane.split()])) for lane in lanes]
    assert len({program_of(config) for config in configs}) == 1, (base, lanes)
    found = differences(base, lanes, num_updates)
    # Adam divides by the root of squared gradients, so weights whose gradients are almost 0 amplify rounding.
    assert found.loss < 1e-5, (base, lanes, found)
    assert max(found.weights, found.buffers) < 2e-3, (base, lanes, found)


@pytest.mark.parametrize("seed", slow_but((0,), range(6)))
def test_random_lanes_train_as_alone(seed: int) -> None:
    check_case(seed, num_updates=6)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6, 106))
def test_many_random_lanes_train_as_alone(seed: int) -> None:
    check_case(seed, num_updates=20)
