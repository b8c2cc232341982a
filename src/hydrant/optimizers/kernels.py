"""Choose the kernels of torch that update the weights, where the config leaves the choice open."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import ASGD, SGD, Adadelta, Adagrad, Adam, Adamax, AdamW, NAdam, Optimizer, RAdam, RMSprop

from hydrant.optimizers.muon import MuonWithAdamW
from hydrant.optimizers.norms import is_sharded, local_tensors
from hydrant.optimizers.normuon import NorMuonWithAdamW

KERNEL_FIELDS = ("foreach", "fused")
"""Fields of parameter groups that choose a kernel. They belong to the process, not to the state of an optimizer."""

_FUSED_IF_SHARDED = frozenset((Adam, AdamW, MuonWithAdamW, NorMuonWithAdamW))
_FUSED = _FUSED_IF_SHARDED | {SGD, Adagrad}
_FOREACH_IF_SHARDED = frozenset((SGD, Adagrad, RMSprop, Adadelta, Adamax, ASGD, NAdam, RAdam))
"""Optimizers whose foreach operations DTensor has. It lacks Rprop's `_foreach_copy_`, for example."""

_DENSE = (torch.contiguous_format, torch.channels_last, torch.channels_last_3d)

_Groups = Sequence[Mapping[str, Any]]


def with_fastest_kernel(
    factory: partial[Any], sparse: Collection[int] = ()
) -> Callable[[_Groups], Optimizer]:
    """Return a function that builds an optimizer of parameter groups like `factory`, with torch's fastest kernel.

    This is the fused kernel where it exists. For sharded weights without it, it is the foreach kernel, because torch
    would update them one by one. An optimizer for which the config sets `fused`, `foreach` or `differentiable`, and
    one that is not torch's, remains as it is.

    Args:
        factory: the optimizer's class, with the arguments of the config.
        sparse: the `id` of parameters with sparse gradients, which the fused kernels cannot read.
    """

    def build(groups: _Groups) -> Optimizer:
        kernel = _kernel(factory, groups, sparse)
        optimizer = factory(groups, **kernel)
        if factory.func is SGD and kernel.get("fused"):
            _begin_momentum(optimizer)
            optimizer.register_load_state_dict_post_hook(_begin_momentum)
        return optimizer

    return build


def _begin_momentum(optimizer: Any) -> None:
    """Set the momentum of every weight that has none to 0. torch would set it to the first gradient instead.

    Without dampening, both give the same updates. But torch's fused kernel fails if some weights receive their first
    gradient in a later update than others.
    """
    for group in optimizer.param_groups:
        if group["momentum"] != 0:
            for parameter in group["params"]:
                state = optimizer.state[parameter]
                if state.get("momentum_buffer") is None:
                    state["momentum_buffer"] = torch.zeros_like(parameter)


def _kernel(factory: partial[Any], groups: _Groups, sparse: Collection[int]) -> dict[str, bool]:
    kind, settings = factory.func, (factory.keywords, *groups)
    if any(s.get(field) is not None for s in settings for field in KERNEL_FIELDS):
        return {}
    if any(s.get("differentiable") for s in settings):
        return {}
    parameters = [p for group in groups for p in group["params"]]
    has_shards = any(is_sharded(p) for p in parameters)
    devices = {p.device.type for p in parameters}
    has_fused = kind in (_FUSED_IF_SHARDED if has_shards else _FUSED)
    is_dampened = kind is SGD and any(s.get("dampening") for s in settings)  # see _begin_momentum
    is_supported = not is_dampened and (kind is not Adagrad or devices == {"cpu"})
    if has_fused and is_supported and all(map(_suits_fused, parameters)):
        return {} if any(id(p) in sparse for p in parameters) else {"fused": True}
    return {"foreach": True} if has_shards and kind in _FOREACH_IF_SHARDED else {}


def _suits_fused(parameter: Tensor) -> bool:
    """Return whether the fused kernels compute a parameter. On the CPU they read its memory without its strides."""
    [local] = local_tensors([parameter])
    is_dense = any(local.is_contiguous(memory_format=layout) for layout in _DENSE)
    return local.is_floating_point() and is_dense
