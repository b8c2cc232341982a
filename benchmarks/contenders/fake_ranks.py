"""What one update exchanges on so many ranks, of which there is only this one: torch's fake process group.

Prints the collectives that were issued, and those that the cost model has.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeProcessGroup, FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.cost_model import Collective, Shape, ddp_update, fsdp_update
from benchmarks.on_paper import AGREED
from hydrant.batch import Batch
from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.distributed import World
from hydrant.fsdp import units
from hydrant.making import make

KINDS = {  # and which argument is the whole tensor
    "allreduce_": ("all_reduce", 0),
    "_allgather_base_": ("all_gather", 0),
    "_reduce_scatter_base_": ("reduce_scatter", 1),
    "broadcast_": ("broadcast", 0),
}
WORDS = ("data=synthetic", "data.input_shape=[3,32,32]", "model=timm", "model.name=vit_tiny_patch16_224",
         "+model.kwargs.img_size=32", "+model.kwargs.depth=4")  # fmt: skip
CAP_MB = 2


class Recorded(TorchDispatchMode):
    """The collectives that are issued within."""

    def __init__(self) -> None:
        super().__init__()
        self.collectives = list[Collective]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            kind, position = KINDS[func.overloadpacket.__name__]
            tensors = args[position] if isinstance(args[position], list) else [args[position]]
            groups = [
                one
                for one in args
                if isinstance(one, torch.ScriptObject) and "ProcessGroup" in str(one._type())
            ]
            num_bytes = sum(tensor.nbytes for tensor in tensors)
            self.collectives.append(Collective(kind, num_bytes, dist.ProcessGroup.unbox(groups[0]).size()))
        return func(*args, **(kwargs or {}))


def parallel_words(option: str, num_ranks: int) -> list[str]:
    """The words for `parallel=`; a node has 8 ranks."""
    own = {"ddp": [f"parallel.bucket_cap_mb={CAP_MB}"], "hsdp": [f"parallel.replicate={num_ranks // 8}"]}
    return [f"parallel={option}", *own.get(option, [])]


def issued(config: Mapping[str, Any], num_ranks: int) -> list[Collective]:
    """Of the third update: DDP orders its buckets after the first one."""
    options = FakeProcessGroup.Options()
    options.simulate_uniform_ranks = True
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=num_ranks, pg_options=options)
    parallel = make(config, "parallel")(World(0, 0, num_ranks, torch.device("cpu")))
    task = parallel.wrap(parallel.prepare(make(config, "task")(make(config, "model"))))
    batch = Batch(torch.zeros(1, *config["data"]["input_shape"]), torch.zeros(1, dtype=torch.int64))
    for _ in range(3):
        with Recorded() as found, parallel.gradient_sync(task, is_last=True):
            task(batch).total_loss().backward()
            parallel.agree(1, None)
        task.zero_grad()
    dist.destroy_process_group()
    return found.collectives


def predicted(config: Mapping[str, Any], option: str, num_ranks: int) -> list[Collective]:
    """By the cost model, and what the hosts agree on."""
    model: nn.Module = make(config, "model")
    agreed = Collective("all_reduce", AGREED, num_ranks)
    if option == "ddp":
        return [*ddp_update(shapes(model), num_ranks, CAP_MB * 2**20), agreed]
    blocks = list(units(model))
    inner = {parameter for block in blocks for parameter in block.parameters()}
    rest = [tuple(parameter.shape) for parameter in model.parameters() if parameter not in inner]
    num_replicas = num_ranks // 8 if option == "hsdp" else 1
    return [*fsdp_update([shapes(block) for block in blocks], rest, num_ranks, num_replicas), agreed]


def shapes(module: nn.Module) -> list[Shape]:
    """Of its parameters, in their order."""
    return [tuple(parameter.shape) for parameter in module.parameters()]


def main() -> None:
    found = list[dict[str, Any]]()
    for num_ranks in json.loads(sys.argv[1]):
        for option in ("ddp", "fsdp", "hsdp"):
            config = check(compose([*WORDS, *parallel_words(option, num_ranks)]))
            both = {"issued": issued(config, num_ranks), "predicted": predicted(config, option, num_ranks)}
            found.append({"option": option, "num_ranks": num_ranks, **both})
    print(json.dumps(found))


if __name__ == "__main__":
    main()
