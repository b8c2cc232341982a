"""The ranks that share an update."""

from __future__ import annotations

import inspect
import pkgutil

from hydrant.commands.eject.cutting.collector import Collector
from hydrant.commands.eject.cutting.run import RUN
from hydrant.commands.eject.layout import keyword, literal
from hydrant.commands.eject.parts import Constant
from hydrant.errors import ConfigError
from hydrant.training.distributed.ddp import buffer_setting
from hydrant.training.plan import Plan
from hydrant.training.prepare.dry_run import dry_collectives

_OF_TORCH = {
    "bucket_cap_mb": None,  # which makes the first bucket smaller than any number does
    "gradient_as_bucket_view": False,
    "static_graph": False,
    "find_unused_parameters": False,
}
"""The settings of DistributedDataParallel with their defaults."""


def check_collectives(plan: Plan) -> None:
    """Check that no forward calls a collective: a file has no ranks, or ranks that evaluate uneven numbers of batches.

    Raises:
        ConfigError: the model or the task calls one; names the line.
    """
    with plan.world.process_group():
        called = dry_collectives(plan.task, plan.data, plan.train)
        called += dry_collectives(plan.task, plan.data, plan.val, is_training=False)
    if not called:
        return
    parts = (pkgutil.resolve_name(plan.config[key]["_target_"]) for key in ("model", "task"))
    model, task = map(inspect.getsourcefile, parts)
    key = "task" if called[0].location.startswith(f"{task}:") and task != model else "model"
    message = f"its forward calls {called[0]}, which cannot be ejected, because ranks may have other numbers of batches"
    remedy = "use only the samples of one rank there, or train with hydrant train"
    raise ConfigError(key, message, remedy=remedy)


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
    model = collector.plan.task.model
    norms = [module for module in model.modules() if getattr(module, "num_batches_tracked", None) is not None]
    combined = [buffer for norm in norms if norm.momentum is not None for buffer in norm.buffers()]
    if len(combined) < len(list(model.buffers())):
        message = "buffers that are no statistics of batch norm cannot be ejected yet with several ranks"
        raise ConfigError("model", message, remedy="give parallel.num_processes=1")
    if known.get("REDUCES_PARTS"):
        message = "logits in parts cannot be ejected yet with several ranks; give null"
        raise ConfigError("task.max_logits_gib", message)
    collector.constant("NUM_RANKS", num_ranks, "processes that torchrun starts", group=RUN)
    constants["RANK"] = Constant('int(os.environ.get("RANK", "0"))', "of this process, from 0", RUN)
    local = 'int(os.environ.get("LOCAL_RANK", "0"))'
    device = f'torch.device("cuda", {local}) if torch.cuda.is_available() else torch.device("cpu")'
    constants["DEVICE"] = Constant(device, "of this process", RUN)
    num_steps = collector.plan.spec.batch_sizes.value(0) // (num_ranks * known["MICRO_BATCH_SIZE"])
    collector.know(ACCUMULATES=num_steps > 1)
    if num_steps > 1 and not node["static_graph"]:
        collector.know(SYNCS_ONCE=True)
        comment = "forward passes of each rank in an update"
        collector.constant("NUM_MICRO_STEPS", num_steps, comment, group=RUN)
    given = {name: node[name] for name, usual in _OF_TORCH.items() if node[name] != usual}
    settings = [keyword(name, literal(value)) for name, value in given.items()]
    if known["HAS_BUFFERS"]:  # which the ranks combine themselves
        settings.append(f"{buffer_setting()}=False")
    wrapper = "DistributedDataParallel"
    text = f"{wrapper}({', '.join(['model', *settings])})"
    collector.express("wrap_for_ranks", text, DistributedDataParallel=("torch.nn.parallel", wrapper))
