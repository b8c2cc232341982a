"""The repeated blocks of a model, such as the layers of a transformer."""

from __future__ import annotations

from torch import nn


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """Return the repeated blocks in the `ModuleList`s and `Sequential`s of a model.

    Blocks repeat if one list has several of the same class with the same parameter shapes. Modules without children,
    such as `nn.Linear`, and blocks inside another repeated block are left out. Each block is listed once.
    """
    blocks: dict[nn.Module, None] = {}
    inner: set[int] = set()
    for module in model.modules():
        if not isinstance(module, nn.ModuleList | nn.Sequential) or id(module) in inner:
            continue
        children = [child for child in module if any(True for _ in child.children())]
        kinds = [(type(child), [p.shape for p in child.parameters()]) for child in children]
        for child, kind in zip(children, kinds, strict=True):
            if kinds.count(kind) > 1:
                inner.update(map(id, child.modules()))
                blocks[child] = None
    return list(blocks)
