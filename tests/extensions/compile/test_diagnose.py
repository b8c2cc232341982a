"""`hydrant diagnose` finds the stage and the line of every known graph break, failure and wrong result."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from training_runs import UserModule

from hydrant import cli

WORDS = ("data=synthetic", "data.input_shape=[3,12,12]", "data.num_classes=4", "data.num_samples=16",
         "data.num_val_samples=4", "global_batch_size=4", "model._target_=breaking.Net", "~model.hidden",
         "~model.dropout", "allow_targets=[breaking]")  # fmt: skip

PARTS = """
import logging
import os
import signal

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from functorch.compile import make_boxed_func
from torch._dynamo import register_backend
from torch._dynamo.backends.common import aot_autograd

class Net(nn.Module):
    calls = 0

    def __init__(self, *, input_shape, num_classes, kind="clean"):
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 5)
        self.classifier = nn.Linear(6 * 4 * 4, num_classes)
        self.kind, self.seen, self.logger = kind, {}, logging.getLogger("net")

    def forward(self, inputs):
        x = F.max_pool2d(F.relu(self.conv(inputs)), 2).flatten(1)
        if self.kind == "seed":
            assert torch.all(x >= -1e9), "too small"
            self.seen["mean"] = x.mean().item()
            for k in np.arange(3):
                x = x + float(k) * 0.01
            print("forward")
        if self.kind == "many":
            if x.sum() > 1e9:  # the branch
                x = x * 2
            self.logger.warning("%s", x.shape)
            x = skipped(x)
            x = x + x[x > 1e9].sum()
            with torch.no_grad():
                total = x.sum(0)
                dist.all_reduce(total, async_op=True).wait()
            x = x + 0 * total
        if self.kind == "odd":
            x = torch.ops.breaking.odd(x)
        if self.kind == "changing":
            Net.calls += 1
            x = x * (1 + 0.1 * Net.calls)
        if self.kind == "untrainable" and self.training:
            raise ValueError("no gradient of this")
        return self.classifier(x)

@torch.compiler.disable
def skipped(x):
    return x

@torch.library.custom_op("breaking::odd", mutates_args=())
def odd(x: torch.Tensor) -> torch.Tensor:
    return x * 2

odd.register_fake(torch.empty_like)
odd.register_autograd(lambda ctx, gradient: gradient * 2)

@register_backend
def raising_pool(graph, inputs):
    if any("max_pool2d" in node.name for node in graph.graph.nodes):
        raise RuntimeError("no code for max_pool2d")
    return graph.forward

@register_backend
def wrong_relu(graph, inputs):
    for node in graph.graph.nodes:
        if "relu" in str(node.target):
            node.target = torch.sigmoid
            node.kwargs = {}
    graph.recompile()
    return graph.forward

@register_backend
def not_a_number(graph, inputs):
    def call(*args):
        return [o * float("nan") if torch.is_tensor(o) and o.is_floating_point() else o for o in graph(*args)]
    return call

@register_backend
def dying_early(graph, inputs):
    os.kill(os.getpid(), signal.SIGKILL)

def unchanged(graph, inputs):
    return make_boxed_func(graph.forward)

def doubled(graph, inputs):
    if not any("threshold_backward" in str(node.target) for node in graph.graph.nodes):
        return unchanged(graph, inputs)
    return make_boxed_func(lambda *args: [g if g is None else 2 * g for g in graph(*args)])

register_backend(aot_autograd(fw_compiler=unchanged, bw_compiler=doubled), name="wrong_backward")
"""


@pytest.fixture
def diagnose(
    workdir: Path, user_module: UserModule, capsys: pytest.CaptureFixture[str]
) -> Callable[..., dict[str, Any]]:
    """Run `hydrant diagnose --json` on a broken model; assert the exit status, and that no file is left."""
    user_module("breaking", PARTS)

    def run(*words: str, status: int = 1) -> dict[str, Any]:
        assert cli.main(["diagnose", *WORDS, *words, "--json"]) == status
        assert {path.name for path in workdir.iterdir()} <= {"breaking.py", "__pycache__"}
        output = capsys.readouterr().out
        return json.loads(output) if status < 2 else {}

    return run


def line_of(text: str) -> int:
    return next(i for i, line in enumerate(PARTS.splitlines(), 1) if text in line)


def lines(incidents: list[dict[str, Any]]) -> list[int]:
    assert all("breaking.py" in incident["location"] for incident in incidents)
    return [int(incident["location"].rpartition(":")[2]) for incident in incidents]


@pytest.mark.slow
def test_a_backend_that_computes_nan_differs(diagnose: Callable[..., dict[str, Any]]) -> None:
    diagnosis = diagnose("compile=default", "compile.backend=not_a_number")
    assert diagnosis["stages"][-1]["verdict"] == "differs"


def test_a_clean_config_has_no_findings(diagnose: Callable[..., dict[str, Any]]) -> None:
    diagnosis = diagnose("compile=aot_eager", status=0)
    assert diagnosis["findings"] == diagnosis["graph_breaks"] == diagnosis["graph_breaks_behind"] == []
    assert [(s["name"], s["verdict"]) for s in diagnosis["stages"]] == [("aot_eager", "ok")]
    assert diagnosis["culprit"] is None


@pytest.mark.slow
def test_breaks_behind_other_breaks_are_found(diagnose: Callable[..., dict[str, Any]]) -> None:
    """`.item()`, a loop over numpy and print break the graph; an assert no longer does."""
    diagnosis = diagnose("compile=aot_eager", "+model.kind=seed")
    assert lines(diagnosis["graph_breaks"]) == [line_of(".item()"), line_of("float(k)")]
    assert lines(diagnosis["graph_breaks_behind"]) == [line_of('print("forward")')]
    assert diagnosis["graph_breaks"][0]["reason"]
    assert diagnosis["graph_breaks"][0]["remedy"]
    assert "print" in diagnosis["graph_breaks_behind"][0]["reason"]
    assert diagnosis["graph_breaks"][0]["code"] == 'self.seen["mean"] = x.mean().item()'
    assert "2 graph breaks" in diagnosis["findings"][0]


@pytest.mark.slow
def test_each_known_break_has_its_line_and_reason(diagnose: Callable[..., dict[str, Any]]) -> None:
    reasons = {
        "# the branch": "data-dependent branching",
        "self.logger.warning": "logging",
        "x = skipped(x)": "torch.compiler.disable",
        "x[x > 1e9]": "output shape depends on input Tensor data",
        "async_op=True": "collective",
    }
    breaks = diagnose("compile=aot_eager", "+model.kind=many")["graph_breaks"]
    assert lines(breaks) == [line_of(text) for text in reasons]
    for incident, reason in zip(breaks, reasons.values(), strict=True):
        assert reason in incident["reason"]
        assert incident["remedy"]  # Dynamo's hint


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "stage", "verdict", "text", "message"),
    [
        (("compile.backend=raising_pool",), "raising_pool", "error", "F.max_pool2d", "no code for max_pool2d"),
        (("compile.backend=wrong_relu",), "wrong_relu", "differs", "F.relu", "the loss is"),
        (("compile.backend=wrong_backward",), "wrong_backward", "differs", "F.relu", "the gradients differ"),
        (("+model.kind=odd", "+compile.options.implicit_fallbacks=false"),
         "inductor", "error", "breaking.odd(x)", "missing lowering"),
    ],
)  # fmt: skip
def test_the_failing_stage_and_line(
    words: tuple[str, ...],
    stage: str,
    verdict: str,
    text: str,
    message: str,
    diagnose: Callable[..., dict[str, Any]],
) -> None:
    diagnosis = diagnose("compile=default", *words)
    stages = [(s["name"], s["verdict"]) for s in diagnosis["stages"]]
    assert stages == [("eager", "ok"), ("dynamo", "ok"), ("aot_eager", "ok"), (stage, verdict)]
    assert message in diagnosis["stages"][-1]["message"]
    assert diagnosis["culprit"]["location"].endswith(f"breaking.py:{line_of(text)}")
    assert diagnosis["culprit"]["graph"].count(" = ") <= 2  # an operation and its input


@pytest.mark.slow
def test_faults_of_the_eager_model_and_dying_processes_are_reported(
    diagnose: Callable[..., dict[str, Any]],
) -> None:
    diagnose("compile=aot_eager", "+model.kind=untrainable", status=2)
    diagnosis = diagnose("compile=aot_eager", "+model.kind=changing")
    assert [(s["name"], s["verdict"]) for s in diagnosis["stages"]] == [("eager", "differs")]
    assert "gives another result in each call" in diagnosis["stages"][0]["message"]
    diagnosis = diagnose("compile=default", "compile.backend=dying_early")
    assert "ended without a result: SIGKILL, usually because the memory" in diagnosis["stages"][-1]["message"]
    assert diagnosis["culprit"].startswith("PyTorch's minifier died")


@pytest.mark.slow
def test_a_wrong_command_line_is_refused(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, message in {
        ("compile=eager",): "compile: compile=eager compiles nothing",
        ("--fast",): "no flag --fast",
        ("compile.scope=modl",): "compile.scope: ",
        ("optimizer.lr=-1",): "optimizer.lr: ",
    }.items():
        assert cli.main(["diagnose", "tracker=local", *words]) == 2
        assert message in capsys.readouterr().err
    assert not list(workdir.iterdir())


@pytest.mark.slow
def test_only_the_progress_is_printed_besides_the_report_for_people(
    user_module: UserModule, capfd: pytest.CaptureFixture[str]
) -> None:
    """Neither what a model prints nor what PyTorch's minifier does."""
    user_module("breaking", PARTS.replace("super().__init__()", "super().__init__(); print('printed')"))
    words = (*WORDS, "compile=default", "compile.backend=raising_pool")
    assert cli.main(["diagnose", *words]) == 1
    output, progress = capfd.readouterr()
    for line in ("graph breaks: none", "  aot_eager     ok", "  raising_pool  fails: ", "1 finding:"):
        assert line in output
    assert f"by PyTorch's minifier: from breaking.py:{line_of('F.max_pool2d')}" in output
    assert "printed" not in output
    assert [line for line in progress.splitlines() if not line.endswith(" ...")] == []
