"""Parameter groups, clipping, and the modes of an optimizer."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Generator
from typing import Any

import torch
from timm.utils.agc import adaptive_clip_grad
from torch import Tensor, nn

from hydrant.commands.eject.program.settings import *


def param_groups(model: nn.Module) -> list[dict[str, Any]]:
    """Return the parameters in GROUPS."""
    named = list(model.named_parameters())
    return [
        {"params": [parameter for name, parameter in named if re.fullmatch(pattern, name)], **settings}
        for pattern, settings in GROUPS
    ]


def gradient_norm(model: nn.Module, optimizer: Any) -> Tensor:
    """Return the norm of all gradients of an update, shape ()."""
    if IN_ORDER:
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
    else:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        gradients = [p.grad for p in parameters if p.grad is not None]
    if HAS_SPARSE:
        gradients = [g.coalesce().values() if g.is_sparse else g for g in gradients]
    return nn.utils.get_total_norm(gradients)


def clip_gradients(model: nn.Module, optimizer: Any) -> Tensor:
    """Clip the gradients of an update; return the norm that they had before, shape ()."""
    norm = gradient_norm(model, optimizer)
    if MAX_GRAD_NORM is not None:
        nn.utils.clip_grads_with_norm_(model.parameters(), MAX_GRAD_NORM, norm)
    if MAX_GRAD_VALUE is not None:
        nn.utils.clip_grad_value_(model.parameters(), MAX_GRAD_VALUE)
    if AGC is not None:
        adaptive_clip_grad(list(model.parameters())[:-2], clip_factor=AGC)  # not the last layer
    return norm


@contextlib.contextmanager
def averaged_weights(model: nn.Module, optimizer: Any) -> Generator[None]:
    """Give the model the weights to evaluate and to save, which this optimizer averages; then those to train."""
    trained = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer.eval()
    yield
    set_trained_weights(model, optimizer, trained)


@torch.no_grad()
def set_trained_weights(model: nn.Module, optimizer: Any, weights: list[Tensor]) -> None:
    """Let the model train with these weights."""
    optimizer.train()
    for parameter, value in zip(model.parameters(), weights, strict=True):
        parameter.copy_(value)
