"""Compiled runs compute the same as eager ones in one graph, and every problem is reported with its line."""

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from marks import slow
from run_folders import (
    assert_close_rows,
    assert_same_state,
    rows,
    rows_without_compile,
    summary,
    training,
    weights,
)
from torch import nn
from training_runs import Train, UserModule, whole_and_resumed

from hydrant import cli
from hydrant.batch import Batch, Outcome
from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.config.instantiate import instantiate
from hydrant.errors import CompileError, ConfigError
from hydrant.training.distributed.world import World

VIT = ("tracker=local", "data=synthetic", "data.input_shape=[3,16,16]", "data.num_classes=4", "data.num_samples=96",
       "data.num_val_samples=21", "model=timm", "model.name=test_vit", "+model.kwargs={img_size: 16, depth: 2}",
       "global_batch_size=16", "eval_batch_size=8", "duration=8", "log_every=1", "eval_every=4",
       "save_every=4")  # fmt: skip
MLP = ("tracker=local", "model.hidden=[16]", "duration=6", "log_every=1", "eval_every=3", "save_every=3")
AOT = ("compile=default", "compile.backend=aot_eager")


def report(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "compile_report.json").read_text())


def assert_close(one: Path, other: Path, tolerance: float) -> None:
    assert_close_rows(one, other, tolerance, tolerance, rows_without_compile)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "tolerance"),
    [
        (("micro_batch_size=4",), 1e-4),
        (("precision=bf16",), 0.02),
        (("precision=fp16", "precision.init_scale=1024.0", "micro_batch_size=8"), 0.02),
        pytest.param(
            ("mixing=mixup", "averaging=ema", "averaging.decay=0.5"), 1e-4, marks=pytest.mark.extension
        ),
        (("max_grad_norm=1", "compile.optimizer=true", "+scheduler@schedules.weight_decay=linear"), 1e-4),
        (("skip_non_finite=true", "scheduler=plateau", "scheduler.patience=0"), 1e-4),
    ],
)
def test_one_graph_computes_the_same_as_eager(words: tuple[str, ...], tolerance: float, train: Train) -> None:
    """In training, evaluation with a smaller last batch, gradient accumulation and a whole schedule."""
    eager_words = tuple(word for word in words if not word.startswith("compile."))
    eager = train(*VIT, *eager_words, name="eager")
    compiled = train(*VIT, *AOT, *words, "compile.evaluation=true", name="compiled")
    assert_close(eager, compiled, tolerance)
    content = report(compiled)
    # Training, evaluation, optimizer step.
    assert content["graphs"] == 2 + ("compile.optimizer=true" in words)
    assert content["graph_breaks"] == content["recompiles"] == []
    assert [incident["guard"] for incident in content["planned"]] == ["GLOBAL_STATE changed: grad_mode"]
    counts = {"graphs", "graph_breaks", "recompiles", "seconds", "cold_seconds"}
    assert summary(compiled)["compile"].keys() == counts


@pytest.mark.parametrize(
    ("scope", "graphs"),
    [
        ("task", 1),
        pytest.param("model", 1, marks=pytest.mark.slow),
        pytest.param("model_and_loss", 2, marks=pytest.mark.slow),
        pytest.param("blocks", 1, marks=pytest.mark.slow),
    ],
)
def test_every_scope_computes_the_same_as_eager(scope: str, graphs: int, train: Train) -> None:
    eager = train(*VIT, name="eager")
    folder = train(*VIT, *AOT, f"compile.scope={scope}", name="compiled")
    assert_close(eager, folder, 1e-4)
    assert report(folder)["graphs"] == graphs
    assert report(folder)["graph_breaks"] == report(folder)["recompiles"] == []
    assert weights(folder).keys() == weights(eager).keys()


@pytest.mark.slow
@pytest.mark.parametrize("option", ["default", "blocks", "max_autotune_no_cudagraphs"])
def test_inductor_computes_the_same_as_eager(option: str, train: Train) -> None:
    eager = train(*VIT, name="eager")
    folder = train(*VIT, f"compile={option}", "compile.evaluation=true", name="compiled")
    assert_close(eager, folder, 1e-3)
    assert report(folder)["graph_breaks"] == report(folder)["recompiles"] == []


@pytest.mark.real_gpu
@pytest.mark.parametrize(
    "words", [(), ("micro_batch_size=4",), ("compile.evaluation=true", "micro_batch_size=8")]
)
def test_cuda_graphs_compute_the_same_as_eager(words: tuple[str, ...], train: Train) -> None:
    """Although a CUDA graph overwrites the losses and gradients of the previous micro-batch."""
    eager_words = tuple(word for word in words if not word.startswith("compile."))
    eager = train(*VIT, *eager_words, name="eager")
    folder = train(*VIT, *words, "compile=reduce_overhead", name="compiled")
    assert_close(eager, folder, 1e-3)
    assert report(folder)["recompiles"] == []


@pytest.mark.parametrize(
    ("word", "arguments"),
    [
        ("compile.mode=max-autotune", {"mode": "max-autotune"}),
        ("+compile.options.max_autotune=true", {"options": {"max_autotune": True}}),
    ],
)
def test_the_step_is_compiled_in_the_mode_of_the_task(
    word: str, arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a CUDA graph holds it, too."""
    compiled = compilation(World(0, 0, 1, torch.device("cpu")), "compile.optimizer=true", word)
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(torch, "compile", lambda _, **arguments: calls.append(arguments))
    compiled.optimizer_step(torch.optim.Adam([torch.nn.Parameter(torch.zeros(2))]), {"lr"})
    assert calls == [{"backend": "aot_eager", **arguments}]


def test_a_compiled_evaluation_may_be_a_cuda_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch is marked as a step, and its outcome is copied: the next batch overwrites it, as in training."""
    marks: list[None] = []
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: marks.append(None))
    compiled = compilation(World(0, 0, 1, torch.device("cpu")), "compile.evaluation=true")
    compiled.reuses_memory = True  # as on CUDA
    memory, model = torch.zeros(4), torch.nn.Linear(1, 1)

    class Overwriting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, batch: Batch) -> Outcome:
            memory.add_(1)
            return Outcome({"loss": memory.sum()}, {}, memory, len(batch.targets))

    batch = Batch(torch.zeros(4, 1), torch.zeros(4))
    first, second = (compiled.forward_eval(Overwriting(), batch) for _ in range(2))
    assert first.predictions.tolist() == [1.0] * 4
    assert second.predictions.tolist() == [2.0] * 4
    assert len(marks) == 2


def test_a_resumed_run_is_exact_and_recompiles_nothing(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    words = (*MLP, *AOT, "compile.evaluation=true", "model.dropout=0.3")
    whole, half = whole_and_resumed(train, monkeypatch, words, 2)
    assert rows_without_compile(whole) == rows_without_compile(half)
    assert_same_state(weights(whole), weights(half))
    assert report(half)["recompiles"] == []


@pytest.mark.slow
def test_dropout_draws_the_same_numbers_as_in_eager(train: Train) -> None:
    words = (*MLP, "model.dropout=0.5")
    assert_close(train(*words, name="eager"), train(*words, "compile=default", name="compiled"), 1e-4)


PARTS = """
import torch
from torch import nn
from functorch.compile import make_boxed_func
from torch._dynamo import register_backend
from torch._dynamo.backends.common import aot_autograd

calls = []

class Net(nn.Module):
    def __init__(self, *, input_shape, num_classes, hidden, dropout, kind):
        super().__init__()
        self.linear, self.kind, self.calls = nn.Linear(64, num_classes), kind, 0
        self.norm = nn.BatchNorm1d(num_classes) if kind in ("changing", "breaking late") else None

    def forward(self, inputs):
        logits = self.linear(inputs.flatten(1))
        if self.kind == "branch":
            if logits.sum() > 1e9:
                logits = logits * 2
        if self.kind == "print":
            print("forward")
        if self.kind == "counting" and self.training:
            self.calls += 1
            logits = logits + 0.0 * self.calls * len("x" * self.calls)
        if self.kind == "disabled":
            logits = skipped(logits)
        if self.kind in ("changing", "breaking late"):
            self.calls += self.training
            logits = self.norm(nn.functional.dropout(logits, 0.5, self.training))
            if self.kind == "changing":
                logits = logits + 0.0 * len("x" * self.calls)
            elif self.calls > 6:
                print("late")
        if self.kind == "changing in evaluation":
            self.calls += not self.training
            logits = logits + 0.0 * len("x" * self.calls)
        return logits

@torch.compiler.disable
def skipped(logits):
    return logits

@register_backend
def raising(module, inputs):
    raise RuntimeError("no code for you")

compiled = []

@register_backend
def only_once(module, inputs):
    if compiled:
        raise RuntimeError("no second graph")
    compiled.append(module)
    return module.forward

@register_backend
def wrong(module, inputs):
    def call(*args):
        outputs = module(*args)
        return [o * 1.5 if torch.is_tensor(o) and o.is_floating_point() else o for o in outputs]
    return call

def unchanged(module, inputs):
    return make_boxed_func(module.forward)

def doubled(module, inputs):
    return make_boxed_func(lambda *args: [g if g is None else 2 * g for g in module(*args)])

register_backend(aot_autograd(fw_compiler=unchanged, bw_compiler=doubled), name="wrong_gradients")
"""


@pytest.fixture
def net(user_module: UserModule) -> Callable[[str], tuple[str, ...]]:
    user_module("compiled_parts", PARTS)
    model = ("model._target_=compiled_parts.Net", "allow_targets=[compiled_parts]")
    return lambda kind: (*MLP, *model, f"+model.kind={kind}")


def line_of(text: str) -> str:
    return f"compiled_parts.py:{next(n for n, line in enumerate(PARTS.splitlines(), 1) if text in line)}"


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("branch", "if logits.sum()"),
        pytest.param("print", "print(", marks=pytest.mark.slow),
        pytest.param("disabled", "skipped(logits)", marks=pytest.mark.slow),
    ],
)
def test_a_graph_break_fails_with_its_line_or_is_reported(
    kind: str,
    text: str,
    net: Callable[[str], tuple[str, ...]],
    train: Train,
    capsys: pytest.CaptureFixture[str],
) -> None:
    train(*net(kind), *AOT, name="refused", status=1)
    message = capsys.readouterr().err.splitlines()[-1]
    assert "the task cannot be compiled" in message
    assert line_of(text) in message
    folder = train(*net(kind), *AOT, "compile.fullgraph=false", name="broken")
    assert any(line_of(text) in b["location"] for b in report(folder)["graph_breaks"])
    assert summary(folder)["compile"]["graph_breaks"] >= 1
    eager = train(*net(kind), name="eager")
    fallback = train(*net(kind), *AOT, "compile.on_failure=fallback", name="fallback")
    assert rows_without_compile(fallback) == rows_without_compile(eager)
    assert "Continuing eager" in (fallback / "train.log").read_text()


@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")
@pytest.mark.parametrize(
    ("backend", "message"),
    [
        *slow(("raising", "no code for you"), ("wrong", "the loss is")),
        (
            "wrong_gradients",
            "the gradients differ between compiled and eager: model.linear.weight (by 1 of its norm)",
        ),
    ],
)
def test_a_backend_that_raises_or_computes_wrong_is_detected_before_the_first_update(
    backend: str,
    message: str,
    net: Callable[[str], tuple[str, ...]],
    train: Train,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = (*net("plain"), "compile=default", f"compile.backend={backend}")
    folder = train(*words, name="refused", status=1)
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert not any("train/loss" in row for row in rows(folder))
    fallback = train(*words, "compile.on_failure=fallback", name="fallback")
    assert rows_without_compile(fallback) == rows_without_compile(train(*net("plain"), name="eager"))


@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")
def test_the_steps_are_eager_too_after_a_fallback_before_the_first_update(
    net: Callable[[str], tuple[str, ...]], train: Train
) -> None:
    words = ("compile=default", "compile.backend=wrong", "compile.optimizer=true",
             "compile.on_failure=fallback")  # fmt: skip
    state = training(train(*net("plain"), *words))["optimization"]
    assert state["steps"] == {"main": {"is_compiled": False}}
    assert isinstance(state["optimizers"]["main"]["param_groups"][0]["lr"], float)


@pytest.mark.slow
def test_recompilations_are_logged_and_limited(
    net: Callable[[str], tuple[str, ...]], train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*net("counting"), *AOT, "compile.check=false")
    folder = train(*words, name="free")
    recompiles = report(folder)["recompiles"]
    assert recompiles
    assert all(
        "compiled_parts.py" in incident["location"] or "calls" in incident["guard"] for incident in recompiles
    )
    log = (folder / "train.log").read_text()
    assert log.count("recompiled after update") == len(recompiles)
    train(*words, "compile.max_recompiles=0", name="strict", status=1)
    assert "more than compile.max_recompiles=0" in capsys.readouterr().err.splitlines()[-1]
    warned = train(*words, "compile.max_recompiles=0", "compile.over_budget=warn", name="warned")
    assert (warned / "train.log").read_text().count("more than compile.max_recompiles=0") == 1


LONG = ("compile=dynamo", "duration=12", "eval_every=4")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "words", "logged"),
    [
        ("breaking late", ("compile.on_failure=fallback",), "Continuing eager after update"),
        ("changing", (), "eager from update 8 on, because torch allows no more recompilations: "),
        (
            "changing",
            ("compile.fullgraph=true", "compile.on_failure=fallback"),
            "Continuing eager after update 7",
        ),
        (
            "changing",
            ("compile.max_recompiles=2", "compile.on_failure=fallback"),
            "Continuing eager after update 3",
        ),
        (
            "breaking late",
            ("compile.backend=only_once", "compile.fullgraph=false", "compile.on_failure=fallback"),
            "",
        ),
    ],
)
def test_a_run_continues_exactly_from_the_update_that_is_no_longer_compiled(
    kind: str, words: tuple[str, ...], logged: str, net: Callable[[str], tuple[str, ...]], train: Train
) -> None:
    """An update that ran twice, or drew other numbers for dropout, would show in the loss or in the batch norm."""
    eager = train(*net(kind), *LONG, "compile=eager", name="eager")
    folder = train(*net(kind), *LONG, *words, name="compiled")
    assert rows_without_compile(folder) == rows_without_compile(eager)
    assert_same_state(weights(folder), weights(eager))
    assert (folder / "train.log").read_text().count(logged) == 1 or not logged


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "key", "remedy"),
    [
        ("changing", "compile.max_recompiles=2", "Use compile=eager, or "),
        ("changing", "compile.fullgraph=true", "compile.fullgraph=auto. Use compile=eager, or compile.on_fail"),
        ("breaking late", "compile.fullgraph=auto", "Use compile=eager, or compile.on_failure=fallback"),
    ],
)  # fmt: skip
def test_an_error_of_torch_compile_in_a_later_update_names_the_remedy(
    kind: str, key: str, remedy: str, net: Callable[[str], tuple[str, ...]], train: Train,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    train(*net(kind), *LONG, key, status=1)
    message = capsys.readouterr().err.splitlines()[-1]
    assert "compiled_parts.py:" in message
    assert remedy in message


@pytest.mark.slow
def test_torch_s_limit_is_logged_in_evaluations_too(
    net: Callable[[str], tuple[str, ...]], train: Train
) -> None:
    words = ("compile=dynamo", "compile.evaluation=true", "compile.fullgraph=false", "duration=10",
             "eval_every=1")  # fmt: skip
    folder = train(*net("changing in evaluation"), *words)
    assert len(report(folder)["limits"]) == 1
    assert (folder / "train.log").read_text().count("torch allows no more recompilations") == 1


@pytest.mark.slow
def test_runs_share_the_cache_dir(train: Train, workdir: Path) -> None:
    words = (*MLP, "compile=default", "compile.cache_dir=compiled", "model.dropout=0")
    first = report(train(*words, name="first"))
    torch._dynamo.reset()
    second = report(train(*words, "optimizer.lr=1e-2", name="second"))
    assert first["cache"]["misses"] > 0
    assert second["cache"]["misses"] == 0
    assert second["cache"]["hits"] > 0
    assert (workdir / "compiled").is_dir()


@pytest.mark.slow
@pytest.mark.usefixtures("gan")
def test_a_scope_that_the_task_lacks_is_refused(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, message in {
        ("compile=blocks",): "compile.scope: this model has no repeated blocks; use compile.scope=task",
        ("compile=default", "compile.scope=modl"): "compile.scope: ",
        ("compile=default", "compile.scope=model_and_loss", "task=gan", "model=gan", "best.metric=val/generator",
         "best.mode=min"): "compile.scope: Gan computes its loss without a method `assess`",
        ("compile=default", "compile.max_recompiles=-1"): "compile.max_recompiles: ",
        ("compile=default", "compile.on_failure=ignore"): "compile.on_failure: ",
    }.items():  # fmt: skip
        assert cli.main(["train", *MLP[:1], *words]) == 2
        assert message in capsys.readouterr().err
    assert not list(workdir.iterdir())


class Breaking(nn.Module):
    """A task whose forward breaks the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Linear(2, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs = self.model(inputs)
        torch._dynamo.graph_break()
        return 2 * outputs


def compilation(world: World, *words: str) -> Any:
    return instantiate(check(compose([*AOT, *words])), "compile", world)


def test_fullgraph_auto_is_true_on_one_rank() -> None:
    for world_size in (1, 2):
        task = Breaking()
        compilation(World(0, 0, world_size, torch.device("cpu"))).apply(task, retains_graph=False)
        expectation = pytest.raises(CompileError, match="graph_break") if world_size == 1 else nullcontext()
        with torch.no_grad(), expectation:
            task(torch.ones(1, 2))


def test_an_old_gpu_is_refused_or_falls_back_to_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (6, 1))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla P4")
    world = World(0, 0, 1, torch.device("cuda"))
    refusal = r"compile: needs compute capability 7\.0 or more; this is Tesla P4"
    with pytest.raises(ConfigError, match=refusal):
        compilation(world)
    fallen_back = compilation(world, "compile.on_failure=fallback")
    fallen_back.apply(task := Breaking(), retains_graph=False)
    assert not fallen_back.is_on
    assert torch.equal(task(torch.ones(1, 2)), 2 * task.model(torch.ones(1, 2)))
    assert fallen_back.report().graphs == 0
