"""Models with collectives in their forward, on one rank: compiled like eager, or rejected with their line."""

from collections.abc import Callable

import pytest
import torch.distributed as dist
from run_folders import assert_close_rows, rows_without_compile, summary
from training_runs import Train, UserModule

from hydrant import cli

WORDS = ("tracker=local", "duration=3", "log_every=1", "eval_every=3", "save_every=null", "data.num_samples=8",
         "data.num_val_samples=4")  # fmt: skip
pytestmark = pytest.mark.extension  # the option of the network
NET = ("experiment=all_reduce_net", *WORDS)
AOT = ("compile=default", "compile.backend=aot_eager")

PARTS = """
import torch
import torch.distributed as dist
from torch import nn

class Net(nn.Module):
    def __init__(self, *, input_shape, num_classes, kind):
        super().__init__()
        self.linear, self.kind = nn.Linear(3 * 32 * 32, num_classes), kind

    def forward(self, inputs):
        logits = self.linear(inputs.flatten(1))
        total = logits.sum(0)
        if self.kind == "changing":
            dist.all_reduce(total)  # a part of the loss
        else:
            with torch.no_grad():
                total = total.clone()
                dist.all_reduce(total, async_op=True).wait()
        return logits + 0.1 * total
"""


@pytest.fixture
def net(user_module: UserModule) -> Callable[[str], tuple[str, ...]]:
    user_module("adding", PARTS)
    return lambda kind: (
        *NET, "model._target_=adding.Net", "~model.shift", f"+model.kind={kind}", "allow_targets=[adding]",
    )  # fmt: skip


def line_of(text: str) -> str:
    return f"adding.py:{next(i for i, line in enumerate(PARTS.splitlines(), 1) if text in line)}"


def test_an_all_reduce_without_a_gradient_is_compiled_in_one_graph(train: Train) -> None:
    eager = train(*NET, "compile=eager", name="eager")
    compiled = train(*NET, *AOT, name="compiled")
    assert_close_rows(compiled, eager, rel=1e-5, abs=1e-5, read=rows_without_compile)
    figures = summary(compiled)["compile"]
    assert (figures["graphs"], figures["graph_breaks"], figures["recompiles"]) == (1, 0, 0)
    assert not dist.is_initialized()


@pytest.mark.slow
def test_an_asynchronous_collective_breaks_the_graph_or_fails_with_its_line(
    net: Callable[[str], tuple[str, ...]], train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = train(*net("asynchronous"), *AOT, name="broken")  # fullgraph=auto allows the graph break
    assert summary(folder)["compile"]["graph_breaks"] > 0
    train(*net("asynchronous"), *AOT, "compile.fullgraph=true", name="whole", status=1)
    assert line_of("async_op") in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.filterwarnings("ignore:c10d..allreduce_. an autograd kernel")  # torch warns in eager
def test_an_all_reduce_that_changes_the_gradient_is_rejected(
    net: Callable[[str], tuple[str, ...]], train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["train", *net("changing"), *AOT]) == 2
    message = capsys.readouterr().err
    assert message.startswith("error: compile: all_reduce at ")
    assert line_of("# a part of the loss") in message
    eager = train(*net("changing"), "compile=eager", name="eager")
    fallback = train(*net("changing"), *AOT, "compile.on_failure=fallback", name="fallback")
    assert rows_without_compile(fallback) == rows_without_compile(eager)
