"""Warnings that only a GPU or a later Python gives do not fail tests, although all other warnings do."""

import gc
import os
import random
import threading
import warnings

import hypothesis
import pytest
import torch
from processes import fork


def start_sync_debug_mode() -> None:
    torch._C._cuda_set_sync_debug_mode(0)


def read_autocast_dtype() -> None:
    torch.get_autocast_gpu_dtype()


def compile_in_fp32() -> None:
    from torch._inductor.compile_fx import _warn_tf32_disabled

    _warn_tf32_disabled.__wrapped__()


def split_softmax() -> None:
    """As torch 2.11 warns in torch/_inductor/lowering.py; only a GPU's compiler comes there."""
    warnings.warn(
        "\n            Online softmax is disabled on the fly since Inductor decides to\n", stacklevel=1
    )


def capture_nothing() -> None:
    """As torch warns in aten/src/ATen/cuda/CUDAGraph.cpp; Inductor hides it, but not where warnings are errors."""
    warnings.warn("The CUDA Graph is empty. This usually means that the graph was", stacklevel=1)


def compile_source_with_a_wrong_escape() -> None:
    compile("'\\.'", "site-packages/torchao/part.py", "exec")


def fork_with_threads() -> None:
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    os.waitpid(fork(lambda: None), 0)
    end.set()
    thread.join()


def register_random_without_referrers() -> None:
    held = [random.Random()]
    gc.freeze()  # then the list is not among the referrers
    hypothesis.register_random(held[0])
    gc.unfreeze()


@pytest.mark.parametrize(
    "call",
    [
        start_sync_debug_mode,
        read_autocast_dtype,
        compile_in_fp32,
        split_softmax,
        capture_nothing,
        compile_source_with_a_wrong_escape,
        fork_with_threads,
        register_random_without_referrers,
    ],
)
def test_expected_warnings_do_not_fail_tests(call: object, monkeypatch: pytest.MonkeyPatch) -> None:
    assert callable(call)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    call()


def test_other_warnings_fail_tests() -> None:
    with pytest.raises(UserWarning, match="anything"):
        warnings.warn("anything", stacklevel=1)
