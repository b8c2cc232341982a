"""How often the host waits for the GPU while a run trains, between two log points."""

from collections.abc import Callable, Iterable
from pathlib import Path

import gpu
import pytest
import timm
import torch
from marks import slow
from packaging.version import Version
from repository import options_of

from hydrant.data import in_memory
from hydrant.data.in_memory import MAX_WAITING_BATCHES, SideStreamCopies
from hydrant.training import loop, reports
from hydrant.training.checkpoint.storage import _copy_to_host
from hydrant.training.costs import leave_headroom
from hydrant.training.trainer import Trainer

Train = Callable[..., Path]
TrainRecorded = Callable[..., list[gpu.Calls]]

DIGITS = ("tracker=local", "data=digits", "model.hidden=[16]", "max_grad_norm=1", "averaging=ema",
          "limit_train_samples=320", "global_batch_size=32")  # fmt: skip
NUM_UPDATES = 14
"""More than the 10 of an epoch, so that the order of the next epoch is copied to the GPU."""

OPTIMIZERS = sorted(
    {*options_of("optimizer")}
    - {"sparse_adam"}  # takes no dense gradients
    - {"lbfgs"}  # reads the loss at each step of its line search
)
WAITS = {"adafactor": 8, "asgd": 8, "kron": 8, "prodigy": 3, "shampoo": 6}
"""How often an optimizer's own code, which is torch's, timm's or pytorch_optimizer's, waits in each update."""
if Version(timm.__version__) < Version("1.0.31"):
    WAITS["mars"] = 2  # it compared a tensor with a number
PAGEABLE = {"asgd": 4, "prodigy": 1}
"""How often it makes a tensor from a number."""
DECOMPOSING = tuple(option for option in options_of("optimizer") if option in ("kron", "shampoo", "soap"))
"""These decompose matrices, which must not be zeros: they need the level "values"."""
FAST = ("adamw", "muon", "sgd")
PRECISIONS = ("fp32", "bf16", "fp16")


def pairs(optimizers: Iterable[str]) -> list[tuple[str, str]]:
    return [
        (optimizer, precision)
        for optimizer in optimizers
        for precision in PRECISIONS
        if (optimizer, precision) != ("sam", "fp16")  # refused, because it evaluates the loss several times
    ]


@pytest.fixture
def train_recorded(train: Train, monkeypatch: pytest.MonkeyPatch) -> TrainRecorded:
    """Train; return the calls of each update between the log points, except the first two, which create state."""
    recorded: list[gpu.Calls] = []
    train_update = loop.train_update

    def record(trainer: Trainer, *, is_last: bool) -> None:
        with gpu.calls() as calls:
            train_update(trainer, is_last=is_last)
        if trainer.state.num_updates > 2 and not is_last:
            recorded.append(calls)

    def run(*words: str) -> list[gpu.Calls]:
        monkeypatch.setattr(loop, "train_update", record)
        monkeypatch.setattr(in_memory, "_MAX_UPDATES", 4)  # whose batches are made at once
        train(
            *DIGITS,
            f"duration={NUM_UPDATES}",
            f"log_every={NUM_UPDATES}",
            f"eval_every={NUM_UPDATES}",
            *words,
        )
        return recorded

    return run


def assert_waits(recorded: list[gpu.Calls], optimizer: str, precision: str) -> None:
    """Assert that each update waits and copies pageable memory only as often as its optimizer does."""
    assert len(recorded) == NUM_UPDATES - 3
    of_scaler = precision == "fp16"  # which reads whether the update has overflowed
    assert {calls.waits for calls in recorded} == {WAITS.get(optimizer, 0) + of_scaler}
    assert {len(calls.of("copy", "H2D pageable")) for calls in recorded} == {PAGEABLE.get(optimizer, 0)}


@pytest.mark.cuda(level="calls")
@pytest.mark.parametrize(
    ("optimizer", "precision"),
    [
        *pairs(name for name in OPTIMIZERS if name in FAST),
        *slow(*pairs(name for name in OPTIMIZERS if name not in (*FAST, *DECOMPOSING))),
    ],
)
def test_no_wait_between_log_points(optimizer: str, precision: str, train_recorded: TrainRecorded) -> None:
    recorded = train_recorded(f"optimizer={optimizer}", f"precision={precision}")
    assert_waits(recorded, optimizer, precision)


@pytest.mark.slow
@pytest.mark.cuda(stub=True)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("optimizer", DECOMPOSING)
def test_decompositions_are_not_waited_for(
    optimizer: str, precision: str, train_recorded: TrainRecorded
) -> None:
    recorded = train_recorded(f"optimizer={optimizer}", f"precision={precision}")
    assert_waits(recorded, optimizer, precision)


@pytest.mark.cuda(level="calls")
def test_an_evaluation_waits_once_for_each_weights(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many batches it has: for the means of the task, and for those of the average."""
    evaluate_run, recorded = reports.evaluate_run, list[gpu.Calls]()

    def record(trainer: Trainer) -> dict[str, float]:
        with gpu.calls() as calls:
            row = evaluate_run(trainer)
        recorded.append(calls)
        return row

    monkeypatch.setattr(reports, "evaluate_run", record)
    train(*DIGITS, "duration=2", "eval_every=2", "eval_batch_size=45")
    first, later = recorded
    assert (later.waits, len(later.of("copy", "D2H")), len(later.of("copy", "H2D"))) == (2, 2, 0)
    assert first.launches > 8 * 2 * 4


@pytest.mark.cuda(stub=True)
def test_batches_are_copied_ahead_of_the_gpu_but_not_without_end() -> None:
    copy = SideStreamCopies(torch.device("cuda"))
    batch = [torch.ones(3).pin_memory(), torch.ones(5).pin_memory()]
    with gpu.calls() as calls:
        for _ in range(MAX_WAITING_BATCHES + 3):
            copy(batch)
    assert [call.detail for call in calls.of("wait")] == ["event"] * 3
    assert (calls.pageable_copies, calls.counts["stream wait"]) == (0, MAX_WAITING_BATCHES + 3)


@pytest.mark.cuda(stub=True)
def test_a_checkpoint_is_copied_to_pinned_memory_without_a_wait() -> None:
    x = torch.ones(5, 3, device="cuda")
    with gpu.calls() as calls:
        _copy_to_host({("model", "x"): x, ("model", "y"): x.clone()}, {})
    assert calls.waits == 0
    assert [call.detail for call in calls.of("copy", "D2H")] == ["D2H pinned async 60"] * 2


@pytest.mark.cuda(stub=True)
def test_a_trial_leaves_headroom_and_then_gives_it_back() -> None:
    device = torch.device("cuda", 0)
    before = torch.cuda.get_per_process_memory_fraction(device)
    with leave_headroom(device):
        assert torch.cuda.get_per_process_memory_fraction(device) <= 0.91 * before
    assert torch.cuda.get_per_process_memory_fraction(device) == before


@pytest.mark.cuda(level="calls")
def test_nothing_is_computed_at_the_level_calls() -> None:
    x = torch.ones(3, device="cuda")
    with gpu.calls() as calls:
        total = (x + x).sum()
    assert [call.detail for call in calls.of("launch") if "reduce_kernel" in call.detail]
    assert total.item() == 0
