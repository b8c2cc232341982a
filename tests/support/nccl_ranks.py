"""Every collective of torch on ranks with a GPU each, checked on the ranks themselves."""

from pathlib import Path

import torch
import torch.distributed as dist
from spawned import spawn
from torch.distributed import ReduceOp

TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8)
LENGTH = 700_001
"""More than one part of the memory in which ranks meet."""


def check_collectives(folder: Path, num_ranks: int) -> None:
    """Raise if a collective gives a wrong result on one of the ranks."""
    spawn(_rank, num_ranks, str(folder), num_ranks=num_ranks, method="fork")


def _rank(rank: int, num_ranks: int, folder: str) -> None:
    torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=num_ranks,
        device_id=torch.device("cuda", rank),
    )
    backend = dist.group.WORLD._get_backend(torch.device("cuda"))  # type: ignore[union-attr]
    # The class of torch's NCCL, so that a call which this version of torch lacks fails as on a GPU.
    nccl = getattr(dist.distributed_c10d, "ProcessGroupNCCL2", dist.ProcessGroupNCCL)
    assert type(backend) is nccl, type(backend)
    for dtype in TYPES:
        _check_reductions(rank, num_ranks, dtype)
    _check_movements(rank, num_ranks)
    _check_messages(rank, num_ranks)
    _check_subgroups(rank, num_ranks)
    dist.barrier()
    dist.destroy_process_group()


def _values(rank: int, dtype: torch.dtype, length: int = LENGTH) -> torch.Tensor:
    """Return small numbers that differ from rank to rank; their sums and products are exact in each type."""
    return ((torch.arange(length) + rank) % 3 + 1).to(dtype)


def _check_reductions(rank: int, num_ranks: int, dtype: torch.dtype) -> None:
    every = torch.stack([_values(n, dtype).double() for n in range(num_ranks)])
    expected = {
        ReduceOp.SUM: every.sum(0),
        ReduceOp.PRODUCT: every.prod(0),
        ReduceOp.MAX: every.amax(0),
        ReduceOp.MIN: every.amin(0),
    }
    if dtype.is_floating_point:
        expected[ReduceOp.AVG] = every.mean(0).to(dtype).double()
    for operation, result in expected.items():
        dist.all_reduce(x := _values(rank, dtype).cuda(), operation)
        assert torch.equal(x.cpu().double(), result), (dtype, operation)
        dist.reduce(x := _values(rank, dtype).cuda(), 0, operation)
        assert rank or torch.equal(x.cpu().double(), result), (dtype, operation)
    blocks = torch.cat([_values(rank + n, dtype) for n in range(num_ranks)]).cuda()
    dist.reduce_scatter_tensor(x := torch.empty(LENGTH, dtype=dtype, device="cuda"), blocks)
    assert torch.equal(x.cpu(), sum(_values(n + rank, dtype) for n in range(num_ranks))), dtype  # type: ignore[arg-type]


def _check_movements(rank: int, num_ranks: int) -> None:
    everyone = [_values(n, torch.float32) for n in range(num_ranks)]
    dist.all_gather_into_tensor(x := torch.empty(num_ranks * LENGTH, device="cuda"), everyone[rank].cuda())
    assert torch.equal(x.cpu(), torch.cat(everyone))
    dist.broadcast(x := everyone[rank].cuda(), num_ranks - 1)
    assert torch.equal(x.cpu(), everyone[-1])
    gathered = [torch.empty(LENGTH, device="cuda") for _ in range(num_ranks)] if rank == 0 else None
    dist.gather(everyone[rank].cuda(), gathered, 0)
    assert gathered is None or all(torch.equal(x.cpu(), y) for x, y in zip(gathered, everyone, strict=True))
    dist.scatter(
        x := torch.empty(LENGTH, device="cuda"), [y.cuda() for y in everyone] if rank == 0 else None, 0
    )
    assert torch.equal(x.cpu(), everyone[rank])
    dist.all_to_all_single(
        x := torch.empty(num_ranks, device="cuda"), 10.0 * rank + torch.arange(num_ranks, device="cuda")
    )
    assert x.tolist() == [10.0 * n + rank for n in range(num_ranks)]
    objects: list[object] = [None] * num_ranks
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": n} for n in range(num_ranks)]


def _check_messages(rank: int, num_ranks: int) -> None:
    """A ring of messages that are longer than a channel, all at once."""
    following, previous = (rank + 1) % num_ranks, (rank - 1) % num_ranks
    received = torch.empty(LENGTH, device="cuda")
    messages = [
        dist.P2POp(dist.isend, _values(rank, torch.float32).cuda(), following),
        dist.P2POp(dist.irecv, received, previous),
    ]
    for work in dist.batch_isend_irecv(messages):
        work.wait()
    assert torch.equal(received.cpu(), _values(previous, torch.float32))


def _check_subgroups(rank: int, num_ranks: int) -> None:
    mesh = dist.init_device_mesh("cuda", (num_ranks // 2, 2), mesh_dim_names=("replicate", "shard"))
    dist.all_reduce(x := torch.tensor(float(rank), device="cuda"), group=mesh.get_group("shard"))
    assert x.item() == 2 * (rank // 2 * 2) + 1
