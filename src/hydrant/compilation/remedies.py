"""What helps against the usual causes of graph breaks and recompiles."""

from __future__ import annotations

import re

_CODE = {
    r"\bprint\(": "printing: take it out of forward",
    r"\blog(ger|ging)?\.\w+\(": "logging: take it out; what is to be followed is a measurement of the task",
    r"\bwarnings\.warn\(": "a warning: give it when the model is built",
    r"\bnp\.|\bnumpy\b": "numpy where tensors are: use torch's function of that name, or a plain range",
    r"\.item\(\)|\.tolist\(\)": (
        "a number is read from a tensor: keep it a tensor; what is to be followed is a measurement of the task"
    ),
}
"""By a pattern in the line of code."""

_REASONS = {
    r"builtin operator `print`|`print`": _CODE[r"\bprint\("],
    r"[Ll]ogg(er|ing)": _CODE[r"\blog(ger|ging)?\.\w+\("],
    r"Tensor\.item\(\)|_local_scalar_dense|[Dd]ata.dependent operator": _CODE[r"\.item\(\)|\.tolist\(\)"],
    r"generic_jump|[Dd]ata-dependent (branching|jump|assertion|control)": (
        "Python decides by the value of a tensor: use torch.where or torch.cond, or decide outside forward"
    ),
    r"compiler\.disable|_dynamo\.disable|\b[Ss]kip": (
        "the function asks not to be compiled: let it, or compile what is around it by compile.scope"
    ),
    r"[Dd]ynamic (output )?shape|nonzero|masked_select": (
        "the size of the result depends on values: use torch.where, or a mask of fixed size"
    ),
    r"c10d|torch\.distributed": (
        "a collective that Dynamo does not trace; a synchronous all_reduce or all_gather_into_tensor it does"
    ),
}
"""By a pattern in Dynamo's reason: its first line, or else all of it but the hints."""

_RECOMPILES = {
    r"size mismatch|stride mismatch|shape|size\(\)": (
        "inputs of several shapes: make them one, or one graph for all by compile.dynamic=true"
    ),
    r"grad_mode": "the same code with and without gradients is two graphs",
    r"requires_grad": "parameters were frozen or thawed: each set of them is a graph",
    r"GLOBAL_STATE|autocast": "a global setting of torch changed between calls: set it once",
    r"___check_type_id|type\(": "an argument changed its type: give the same type each time",
    r"==|___as_tensor|\bfloat\b|\bint\b": "a Python number changed: make it a tensor, a buffer for example",
}
"""By a pattern in the guard."""


def remedy_for_break(reason: str, code: str) -> str:
    """What to do about a graph break, by the line of code and Dynamo's reason, whose own hint is the last resort.

    >>> remedy_for_break("Failed to trace builtin operator", 'print("loss")')
    'printing: take it out of forward'
    """
    said = re.sub(r"Hint: .*", "", reason)
    for known, text in ((_CODE, code), (_REASONS, reason.partition("\n")[0]), (_REASONS, said)):
        for pattern, told in known.items():
            if re.search(pattern, text):
                return told
    hint = re.search(r"Hint: (.+)", reason)
    return (
        hint[1].strip() if hint else "take it out of forward, or live with the break: compile.fullgraph=false"
    )


def remedy_for_recompile(guard: str) -> str:
    """What to do about a guard that did not hold.

    >>> remedy_for_recompile("self.num_calls == 3")
    'a Python number changed: make it a tensor, a buffer for example'
    """
    for pattern, told in _RECOMPILES.items():
        if re.search(pattern, guard):
            return told
    return "keep what the guard names the same from call to call"
