"""Record the collectives of one update on many ranks in a single process, with torch's fake process group.

Prints the issued collectives and those that the cost model predicts.
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
from benchmarks.on_paper import HOST_BYTES
from hydrant.batch import Batch
from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.config.instantiate import instantiate
from hydrant.models import repeated_blocks
from hydrant.training.distributed.world import World

KINDS = {  # operation: (kind, position of the argument that is the whole tensor)
    "allreduce_": ("all_reduce", 0),
    "_allgather_base_": ("all_gather", 0),
    "_reduce_scatter_base_": ("reduce_scatter", 1),
    "broadcast_": ("broadcast", 0),
}
WORDS = ("data=synthetic", "data.input_shape=[3,32,32]", "model=timm", "model.name=vit_tiny_patch16_224",
         "+model.kwargs.img_size=32", "+model.kwargs.depth=4")  # fmt: skip
CAP_MB = 2


class Recorded(TorchDispatchMode):
    """Records the collectives that are issued within the context."""

    def __init__(self) -> None:
        super().__init__()
        self.collectives = list[Collective]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            kind, position = KINDS[func.overloadpacket.__name__]
            tensors = args[position] if isinstance(args[position], list) else [args[position]]
            scripted = (arg for arg in args if isinstance(arg, torch.ScriptObject))
            group = next(arg for arg in scripted if "ProcessGroup" in str(arg._type()))
            num_bytes = sum(tensor.nbytes for tensor in tensors)
            self.collectives.append(Collective(kind, num_bytes, dist.ProcessGroup.unbox(group).size()))
        return func(*args, **(kwargs or {}))


def parallel_words(option: str, num_ranks: int) -> list[str]:
    """Return the overrides of a `parallel=` option; a node has 8 ranks."""
    extra = {"ddp": [f"parallel.bucket_cap_mb={CAP_MB}"], "hsdp": [f"parallel.replicate={num_ranks // 8}"]}
    return [f"parallel={option}", *extra.get(option, [])]


def issued(config: Mapping[str, Any], num_ranks: int) -> list[Collective]:
    """Return the collectives of the third update, because DDP reorders its buckets after the first one."""
    options = FakeProcessGroup.Options()
    options.simulate_uniform_ranks = True
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=num_ranks, pg_options=options)
    parallel = instantiate(config, "parallel", World(0, 0, num_ranks, torch.device("cpu")))
    task = parallel.wrap(parallel.prepare(instantiate(config, "task", instantiate(config, "model"))))
    batch = Batch(torch.zeros(1, *config["data"]["input_shape"]), torch.zeros(1, dtype=torch.int64))
    for _ in range(3):
        with Recorded() as recorded, parallel.gradient_sync(task, is_last=True):
            task(batch).total_loss().backward()
            parallel.all_reduce_targets(1, None)
        task.zero_grad()
    dist.destroy_process_group()
    return recorded.collectives


def predicted(config: Mapping[str, Any], option: str, num_ranks: int) -> list[Collective]:
    """Return the collectives of the cost model, and the all_reduce of the hosts."""
    model: nn.Module = instantiate(config, "model")
    hosts = Collective("all_reduce", HOST_BYTES, num_ranks)
    if option == "ddp":
        return [*ddp_update(shapes(model), num_ranks, CAP_MB * 2**20), hosts]
    blocks = repeated_blocks(model)
    inner = {parameter for block in blocks for parameter in block.parameters()}
    rest = [tuple(parameter.shape) for parameter in model.parameters() if parameter not in inner]
    num_replicas = num_ranks // 8 if option == "hsdp" else 1
    return [*fsdp_update([shapes(block) for block in blocks], rest, num_ranks, num_replicas), hosts]


def shapes(module: nn.Module) -> list[Shape]:
    """Return the shapes of the parameters, in order."""
    return [tuple(parameter.shape) for parameter in module.parameters()]


def main() -> None:
    cases = list[dict[str, Any]]()
    for num_ranks in json.loads(sys.argv[1]):
        for option in ("ddp", "fsdp", "hsdp"):
            config = check(compose([*WORDS, *parallel_words(option, num_ranks)]))
            case = {"issued": issued(config, num_ranks), "predicted": predicted(config, option, num_ranks)}
            cases.append({"option": option, "num_ranks": num_ranks, **case})
    print(json.dumps(cases))


if __name__ == "__main__":
    main()
