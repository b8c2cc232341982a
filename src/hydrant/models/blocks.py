"""The repeated blocks of a model, such as the layers of a transformer."""

from __future__ import annotations

from torch import nn


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """Return the blocks that repeat in a list of modules: same class, same parameter shapes, with children.

    Each block is listed once. A block inside another repeated block is left out.
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
