"""The buffers of several ranks: batch norm statistics are those of one rank, and all ranks have the same ones."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import run_on_ranks
from run_folders import assert_close_rows, assert_same_state, rows, saved, summary
from spawned import spawn
from torch import Tensor, nn

from hydrant import cli
from hydrant.training.distributed.ddp import RankBuffers

NUM_UPDATES, NUM_MICRO_STEPS = 3, 2


class Norms(nn.Module):
    """Norms with several momenta, one of them frozen, and buffers of several dtypes that each rank changes alone."""

    def __init__(self) -> None:
        super().__init__()
        momenta = (0.1, 0.7, 1.0, 0.0, None)
        self.norms = nn.ModuleList(nn.BatchNorm1d(2, momentum=momentum) for momentum in momenta)
        self.frozen = nn.BatchNorm1d(2).eval()
        self.frozen.running_mean = torch.tensor([0.1, 1e-7])
        self.sequence_norm = nn.InstanceNorm1d(2, track_running_stats=True)
        self.register_buffer("flag", torch.tensor(False))
        self.register_buffer("queue", torch.zeros(2, 3, dtype=torch.complex64))
        self.register_buffer("assigned", torch.zeros(2, dtype=torch.bfloat16))
        self.register_buffer("nothing", None)

    def forward(self, inputs: Tensor) -> None:
        for norm in self.norms:
            norm(inputs)
        self.frozen(inputs)
        self.sequence_norm(inputs[..., None].expand(-1, -1, 4) * torch.arange(4))
        self.flag.fill_(bool(inputs[0, 0] > 0))
        self.queue += inputs[0, 0]
        self.assigned = self.assigned + inputs[0].bfloat16()


def micro_batch(num_updates: int, micro_batch_idx: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 * num_updates + micro_batch_idx)
    return torch.randn(4, 2, generator=generator) * (1 + micro_batch_idx)


def train_norms(rank: int, num_ranks: int, num_micro_batches: int) -> dict[str, Tensor]:
    """Return the buffers of a rank after some updates."""
    task = Norms()
    buffers = RankBuffers(task, rank, num_ranks)
    for num_updates in range(NUM_UPDATES):
        buffers.begin_update()
        for micro_step in range(num_micro_batches // num_ranks):
            task(micro_batch(num_updates, micro_step * num_ranks + rank))
        buffers.end_update()
    return dict(task.named_buffers())


def _rank(rank: int, num_ranks: int, folder: str) -> None:
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=num_ranks)
    torch.save(train_norms(rank, num_ranks, NUM_MICRO_STEPS * num_ranks), f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.parametrize("num_ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_statistics_are_those_of_one_rank_and_buffers_are_equal(num_ranks: int, tmp_path: Path) -> None:
    one = train_norms(0, 1, NUM_MICRO_STEPS * num_ranks)
    spawn(_rank, num_ranks, str(tmp_path), num_ranks=num_ranks)
    ranks: list[dict[str, Any]] = [torch.load(tmp_path / f"{rank}.pt") for rank in range(num_ranks)]
    for rank in ranks[1:]:
        assert_same_state(rank, ranks[0])
    shared = [name for name in one if name.partition(".")[0] in ("norms", "frozen", "sequence_norm")]
    shared.remove("norms.4.num_batches_tracked")  # momentum=None: it counts the micro-batches of one rank
    assert len(shared) == 3 * 7 - 1
    for name in shared:
        torch.testing.assert_close(ranks[0][name], one[name], rtol=1e-5, atol=1e-7, msg=name)
    assert_same_state(ranks[0]["frozen.running_mean"], Norms().frozen.running_mean)
    for name in ("flag", "queue", "assigned"):  # rank 0 has its own micro-batches only
        assert ranks[0][name].dtype == one[name].dtype
    assert ranks[0]["queue"].abs().sum() > 0


def test_one_rank_calls_no_collective() -> None:
    """No process group is initialized, so a collective would raise an error."""
    task = Norms()
    buffers = RankBuffers(task, 0, 1)
    buffers.begin_update()
    buffers.end_update()
    assert [norm.momentum for norm in task.norms] == [0.1, 0.7, 1.0, 0.0, None]


def test_synchronized_norms_keep_their_momentum() -> None:
    task = nn.SyncBatchNorm(2)
    RankBuffers(task, 0, 2)
    assert task.momentum == 0.1


WORDS = ("tracker=local", "model=convnet", "model.widths=[4,8]", "micro_batch_size=8", "global_batch_size=32",
         "model.dropout=0.2", "data.augment.max_shift=1", "mixing=mixup_cutmix", "averaging=ema",
         "averaging.decay=0.5", "duration=6", "log_every=2", "keep_last=9", "limit_val_samples=41")  # fmt: skip
OFTEN, SELDOM = ("eval_every=2", "save_every=1"), ("eval_every=6", "save_every=6")
HALF = "checkpoints/update_00000003"


def named(name: str, *words: str) -> tuple[str, ...]:
    return ("train", f"name={name}", *WORDS, *words)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folders of one rank, of two, and of two that continue at update 3."""
    folder = tmp_path_factory.mktemp("norms")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert cli.main([*named("one", *OFTEN)]) == 0
    run_on_ranks(2, folder, [
        named("ddp", *OFTEN),
        named("seldom", *SELDOM),
        named("ddp_again", *OFTEN, f"resume=outputs/ddp/{HALF}"),
        named("fsdp", *OFTEN, "parallel=fsdp"),
        named("fsdp_again", *OFTEN, "parallel=fsdp", f"resume=outputs/fsdp/{HALF}"),
        named("compiled", *OFTEN, "compile=aot_eager"),
    ])  # fmt: skip
    return folder / "outputs"


@pytest.mark.extension
@pytest.mark.slow
@pytest.mark.extension
@pytest.mark.parametrize("name", ["ddp", "compiled"])
def test_a_run_of_two_ranks_has_the_losses_and_the_statistics_of_one(outputs: Path, name: str) -> None:
    assert_close_rows(outputs / "one", outputs / "ddp", rel=1e-4, abs=1e-5)
    for part in ("model", "ema"):
        one, two = saved(outputs / "one", part), saved(outputs / name, part)
        assert one.keys() == two.keys()
        for key in one:
            torch.testing.assert_close(two[key], one[key], rtol=1e-3, atol=1e-5, msg=key)
    assert summary(outputs / "compiled")["compile"]["recompiles"] == 0


@pytest.mark.extension
@pytest.mark.slow
@pytest.mark.extension
def test_sharded_ranks_have_the_losses_of_one(outputs: Path) -> None:
    assert_close_rows(outputs / "one", outputs / "fsdp", rel=1e-4, abs=1e-5)


@pytest.mark.extension
@pytest.mark.slow
@pytest.mark.extension
def test_evaluations_and_checkpoints_change_nothing(outputs: Path) -> None:
    assert rows(outputs / "seldom")[-1] == rows(outputs / "ddp")[-1]
    for part in ("model", "ema", "training"):
        one, other = saved(outputs / "seldom", part), saved(outputs / "ddp", part)
        one.pop("state", None), other.pop("state", None)
        assert_same_state(one, other)


@pytest.mark.extension
@pytest.mark.slow
@pytest.mark.extension
@pytest.mark.parametrize("name", ["ddp", "fsdp"])
def test_two_ranks_continue_bit_for_bit_at_any_update(outputs: Path, name: str) -> None:
    """No evaluation is due at update 3."""
    assert rows(outputs / f"{name}_again") == rows(outputs / name)
    for file in (outputs / name / "checkpoints" / "last").resolve().glob("*.safetensors"):
        other = (outputs / f"{name}_again" / "checkpoints" / "last").resolve() / file.name
        assert file.read_bytes() == other.read_bytes()
