"""Advice for the usual causes of graph breaks and recompilations."""

from __future__ import annotations

import re
from collections.abc import Mapping

_CODE = {
    r"\bprint\(": "print breaks the graph: remove it from forward",
    r"\blog(ger|ging)?\.\w+\(": "logging breaks the graph: return the value as a measurement of the task instead",
    r"\bwarnings\.warn\(": "a warning breaks the graph: emit it when the model is built",
    r"\bnp\.|\bnumpy\b": "numpy breaks the graph: use the torch function of that name, or a plain range",
    r"\.item\(\)|\.tolist\(\)": (
        "a number is read from a tensor: keep the tensor, or return it as a measurement of the task"
    ),
}
"""Advice by a pattern in the line of code."""

_REASONS = {
    r"builtin operator `print`|`print`": _CODE[r"\bprint\("],
    r"[Ll]ogg(er|ing)": _CODE[r"\blog(ger|ging)?\.\w+\("],
    r"Tensor\.item\(\)|_local_scalar_dense|[Dd]ata.dependent operator": _CODE[r"\.item\(\)|\.tolist\(\)"],
    r"generic_jump|[Dd]ata-dependent (branching|jump|assertion|control)": (
        "Python branches on the value of a tensor: use torch.where or torch.cond, or branch outside forward"
    ),
    r"compiler\.disable|_dynamo\.disable|\b[Ss]kip": (
        "the function is excluded from compilation: accept it, or choose another compile.scope"
    ),
    r"[Dd]ynamic (output )?shape|nonzero|masked_select": (
        "the size of the result depends on values: use torch.where, or a mask of fixed size"
    ),
    r"c10d|torch\.distributed": (
        "Dynamo cannot trace this collective: use a synchronous all_reduce or all_gather_into_tensor"
    ),
}
"""Advice by a pattern in Dynamo's reason: in its first line, else in all of it but the hints."""

_RECOMPILES = {
    r"size mismatch|stride mismatch|shape|size\(\)": (
        "inputs have several shapes: use one shape, or one graph for all with compile.dynamic=true"
    ),
    r"grad_mode": "the same code runs with and without gradients, which needs two graphs",
    r"requires_grad": "parameters were frozen or unfrozen: each set of trained parameters needs a graph",
    r"GLOBAL_STATE|autocast": "a global setting of torch changed between calls: set it once",
    r"___check_type_id|type\(": "an argument changed its type: pass the same type in every call",
    r"==|___as_tensor|\bfloat\b|\bint\b": "a Python number changed: make it a tensor, for example a buffer",
}
"""Advice by a pattern in the guard."""


def remedy_for_break(reason: str, code: str) -> str:
    """Return advice for a graph break by its line of code, else by Dynamo's reason, else Dynamo's own hint.

    >>> remedy_for_break("Failed to trace builtin operator", 'print("loss")')
    'print breaks the graph: remove it from forward'
    """
    without_hints = re.sub(r"Hint: .*", "", reason)
    first_line = reason.partition("\n")[0]
    advice = _advice(_CODE, code) or _advice(_REASONS, first_line) or _advice(_REASONS, without_hints)
    if advice is not None:
        return advice
    hint = re.search(r"Hint: (.+)", reason)
    return hint[1].strip() if hint else "remove it from forward, or allow the break: compile.fullgraph=false"


def remedy_for_recompile(guard: str) -> str:
    """Return advice for a guard that failed.

    >>> remedy_for_recompile("self.num_calls == 3")
    'a Python number changed: make it a tensor, for example a buffer'
    """
    return _advice(_RECOMPILES, guard) or "keep the value in the guard the same in every call"


def _advice(by_pattern: Mapping[str, str], text: str) -> str | None:
    """Return the advice of the first pattern that occurs in the text."""
    return next((advice for pattern, advice in by_pattern.items() if re.search(pattern, text)), None)
