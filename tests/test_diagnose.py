"""`hydrant diagnose`: every known break, failing stage and wrong result is pinned to its stage and line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

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
        if kind == "inject":
            import torch._inductor.config

            torch._inductor.config.cpp.inject_relu_bug_TESTING_ONLY = "accuracy"

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

def as_it_is(graph, inputs):
    return make_boxed_func(graph.forward)

def doubled(graph, inputs):
    if not any("threshold_backward" in str(node.target) for node in graph.graph.nodes):
        return as_it_is(graph, inputs)
    return make_boxed_func(lambda *args: [g if g is None else 2 * g for g in graph(*args)])

register_backend(aot_autograd(fw_compiler=as_it_is, bw_compiler=doubled), name="wrong_backward")
"""


@pytest.fixture
def diagnose(
    workdir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., dict[str, Any]]:
    """`hydrant diagnose --json` of a model that breaks; asserts the exit status, and that nothing is left."""
    monkeypatch.syspath_prepend(workdir)
    (workdir / "breaking.py").write_text(PARTS)

    def run(*words: str, status: int = 1, flags: tuple[str, ...] = ("--no-timing",)) -> dict[str, Any]:
        assert cli.main(["diagnose", *WORDS, *words, "--json", *flags]) == status
        assert {path.name for path in workdir.iterdir()} <= {"breaking.py", "__pycache__"}
        told = capsys.readouterr().out
        return json.loads(told) if status < 2 else {}

    return run


def line_of(text: str) -> int:
    return next(i for i, line in enumerate(PARTS.splitlines(), 1) if text in line)


def lines(incidents: list[dict[str, Any]]) -> list[int]:
    assert all("breaking.py" in incident["location"] for incident in incidents)
    return [int(incident["location"].rpartition(":")[2]) for incident in incidents]


@pytest.mark.slow
def test_a_backend_that_gives_nan_is_wrong(diagnose: Callable[..., dict[str, Any]]) -> None:
    found = diagnose("compile=default", "compile.backend=not_a_number")
    assert found["stages"][-1]["verdict"] == "differs"


def test_a_clean_config_has_no_findings(diagnose: Callable[..., dict[str, Any]]) -> None:
    found = diagnose("compile=aot_eager", status=0)
    assert found["findings"] == found["graph_breaks"] == found["graph_breaks_behind"] == []
    assert [(s["name"], s["verdict"]) for s in found["stages"]] == [("aot_eager", "ok")]
    assert found["culprit"] is None


@pytest.mark.slow
def test_the_four_breaks_of_the_seed(diagnose: Callable[..., dict[str, Any]]) -> None:
    """Of assert, `.item()`, the loop over numpy and print, the assert does not break any more."""
    found = diagnose("compile=aot_eager", "+model.kind=seed")
    assert lines(found["graph_breaks"]) == [line_of(".item()"), line_of("float(k)")]
    assert lines(found["graph_breaks_behind"]) == [line_of('print("forward")')]
    assert "number is read from a tensor" in found["graph_breaks"][0]["remedy"]
    assert "printing" in found["graph_breaks_behind"][0]["remedy"]
    assert found["graph_breaks"][0]["code"] == 'self.seen["mean"] = x.mean().item()'
    assert "2 graph breaks" in found["findings"][0]


def test_each_known_break_has_its_line_and_remedy(diagnose: Callable[..., dict[str, Any]]) -> None:
    known = {
        "# the branch": "Python decides by the value of a tensor",
        "self.logger.warning": "logging",
        "x = skipped(x)": "asks not to be compiled",
        "x[x > 1e9]": "size of the result depends on values",
        "async_op=True": "collective",
    }
    found = diagnose("compile=aot_eager", "+model.kind=many")["graph_breaks"]
    assert lines(found) == [line_of(text) for text in known]
    for incident, told in zip(found, known.values(), strict=True):
        assert told in incident["remedy"]


@pytest.mark.parametrize(
    ("words", "stage", "verdict", "text", "told"),
    [
        pytest.param(
            ("compile.backend=raising_pool",), "raising_pool", "error", "F.max_pool2d", "no code for max_pool2d",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ("compile.backend=wrong_relu",), "wrong_relu", "differs", "F.relu", "the loss is", marks=pytest.mark.slow
        ),
        pytest.param(
            ("compile.backend=wrong_backward",), "wrong_backward", "differs", "F.relu", "the gradients differ",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ("+model.kind=odd", "+compile.options.implicit_fallbacks=false"),
            "inductor", "error", "breaking.odd(x)", "missing lowering", marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
def test_the_failing_stage_and_line(
    words: tuple[str, ...],
    stage: str,
    verdict: str,
    text: str,
    told: str,
    diagnose: Callable[..., dict[str, Any]],
) -> None:
    found = diagnose("compile=default", *words)
    tried = [(s["name"], s["verdict"]) for s in found["stages"]]
    assert tried == [("eager", "ok"), ("dynamo", "ok"), ("aot_eager", "ok"), (stage, verdict)]
    assert told in found["stages"][-1]["told"]
    assert found["culprit"]["location"].endswith(f"breaking.py:{line_of(text)}")
    assert found["culprit"]["graph"].count(" = ") <= 2  # an operation and what it is given


@pytest.mark.slow
def test_a_fault_of_inductor_is_named_by_the_bisector(diagnose: Callable[..., dict[str, Any]]) -> None:
    found = diagnose("compile=default", "+model.kind=inject")
    assert [s["verdict"] for s in found["stages"]] == ["ok", "ok", "ok", "differs"]
    assert found["culprit"]["location"].endswith(f"breaking.py:{line_of('F.relu')}")
    assert "relu" in found["culprit"]["part"]


@pytest.mark.slow
def test_what_is_no_fault_of_compile_and_what_dies_is_told(diagnose: Callable[..., dict[str, Any]]) -> None:
    diagnose("compile=aot_eager", "+model.kind=untrainable", status=2)
    found = diagnose("compile=aot_eager", "+model.kind=changing")
    assert [(s["name"], s["verdict"]) for s in found["stages"]] == [("eager", "differs")]
    assert "something else in each call, also eager" in found["stages"][0]["told"]
    found = diagnose("compile=default", "compile.backend=dying_early")
    assert found["stages"][-1]["told"] == "the process ended by SIGKILL without a result"
    assert found["culprit"].startswith("PyTorch's minifier died on it")


@pytest.mark.slow
def test_the_speed_of_each_mode_cold_and_warm(diagnose: Callable[..., dict[str, Any]]) -> None:
    found = diagnose("compile=aot_eager", status=0, flags=("--updates=2",))
    rows = {row["labels"]["compile"]: row for row in found["timings"]}
    assert list(rows) == ["eager", "default", "blocks", "max_autotune_no_cudagraphs", "as given"]
    assert rows["eager"]["figures"]["speedup"] == 1
    assert rows["eager"]["figures"]["graphs"] == 0
    assert rows["default"]["figures"]["graphs"] == rows["as given"]["figures"]["graphs"] == 1
    assert rows["default"]["figures"]["compile_seconds_cold"] > 0
    assert rows["blocks"]["status"] == "refused"


@pytest.mark.slow
def test_it_looks_at_compiled_configs(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, told in {
        ("compile=eager",): "compile: compile=eager compiles nothing",
        ("--updates=0",): "--updates: needs a number from 1 on",
        ("--fast",): "no flag --fast",
        ("compile.scope=modl", "--no-timing"): "compile.scope: ",
        ("optimizer.lr=-1", "--no-timing"): "optimizer.lr: ",
        ("duration=5",): "duration: 5 updates are fewer than the 13 to make; give duration=13",
    }.items():
        assert cli.main(["diagnose", "tracker=local", *words]) == 2
        assert told in capsys.readouterr().err
    assert not list(workdir.iterdir())


@pytest.mark.slow
def test_the_report_is_read_by_people(
    diagnose: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        cli.main(["diagnose", *WORDS, "compile=default", "compile.backend=raising_pool", "--no-timing"]) == 1
    )
    told = capsys.readouterr().out
    for line in ("graph breaks: none", "  aot_eager     ok", "  raising_pool  fails: ", "1 finding:"):
        assert line in told
    assert f"by PyTorch's minifier: from breaking.py:{line_of('F.max_pool2d')}" in told
