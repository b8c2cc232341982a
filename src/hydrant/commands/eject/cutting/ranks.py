"""The ranks that share an update."""

from __future__ import annotations

from hydrant.commands.eject.assemble import Constant
from hydrant.commands.eject.cutting.collector import Collector
from hydrant.commands.eject.cutting.run import RUN
from hydrant.errors import ConfigError

_OF_TORCH = {
    "bucket_cap_mb": 25,
    "gradient_as_bucket_view": False,
    "static_graph": False,
    "find_unused_parameters": False,
}
"""The settings of DistributedDataParallel with their defaults."""


def cut_ranks(collector: Collector) -> None:
    """Add what several ranks need.

    Raises:
        ConfigError: a part of the config cannot be ejected with several ranks.
    """
    node, known, constants = collector.config["parallel"], collector.parts.known, collector.parts.constants
    num_ranks = node["num_processes"]
    collector.know(RANKED=num_ranks > 1, SYNCS_ONCE=False)
    if num_ranks == 1:
        return
    if known["HAS_BUFFERS"]:
        message = (
            "statistics of batch norm over several ranks cannot be ejected yet; give 1, or another model"
        )
        raise ConfigError("parallel.num_processes", message)
    if known.get("REDUCES_PARTS"):
        message = "logits in parts cannot be ejected yet with several ranks; give null"
        raise ConfigError("task.max_logits_gib", message)
    collector.constant("NUM_RANKS", num_ranks, "processes that torchrun starts", group=RUN)
    constants["RANK"] = Constant('int(os.environ.get("RANK", "0"))', "of this process", RUN)
    local = 'int(os.environ.get("LOCAL_RANK", "0"))'
    device = f'torch.device("cuda", {local}) if torch.cuda.is_available() else torch.device("cpu")'
    constants["DEVICE"] = Constant(device, "", RUN)
    num_steps = collector.config["global_batch_size"] // (num_ranks * known["MICRO_BATCH_SIZE"])
    if num_steps > 1 and not node["static_graph"]:
        collector.know(SYNCS_ONCE=True)
        comment = "forward passes of each rank in an update"
        collector.constant("NUM_MICRO_STEPS", num_steps, comment, group=RUN)
    settings = [f"{name}={node[name]}" for name, usual in _OF_TORCH.items() if node[name] != usual]
    wrapper = "DistributedDataParallel"
    text = f"{wrapper}({', '.join(['model', *settings])})"
    collector.express("wrap_for_ranks", text, DistributedDataParallel=("torch.nn.parallel", wrapper))
