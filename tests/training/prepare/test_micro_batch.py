"""`micro_batch_size: auto` finds the largest micro-batch that fits."""

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from limited_memory import LIMITED_RUN
from marks import of_extension, slow
from run_folders import assert_same_state, rows, weights
from training_runs import Train, whole_and_resumed

from hydrant import cli
from hydrant.training.costs import leave_headroom
from hydrant.training.prepare import micro_batch


def saved_size(folder: Path) -> object:
    """Return the micro-batch size in the config of a run folder."""
    return yaml.safe_load((folder / "config.yaml").read_text())["micro_batch_size"]


@pytest.mark.slow
@pytest.mark.usefixtures("limited_model")
def test_auto_equals_a_run_with_the_largest_divisor_that_fits(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after a stop. The trials do not change the batch norm statistics."""
    words = (*LIMITED_RUN, "+model.train_limit=9", "optimizer=sgd", "averaging=ema")
    auto, resumed = whole_and_resumed(train, monkeypatch, (*words, "micro_batch_size=auto"), stop_at=1)
    configured = train(*words, "micro_batch_size=8", name="configured")
    for folder in (auto, resumed):
        assert saved_size(folder) == 8
        assert_same_state(weights(folder), weights(configured))
        assert rows(folder) == rows(configured)


@pytest.mark.usefixtures("limited_model")
@pytest.mark.parametrize(("free", "size"), slow((8.5, 6), (8.9, 8), (24.0, 12)))
def test_auto_leaves_headroom(free: float, size: int, train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a planted device of 32 GiB where a sample takes one: a trial may use 91 % of what is free."""
    import limited  # type: ignore[import-not-found]

    total, fractions = 32.0, [0.9]
    forward = limited.Limited.forward

    def forward_in_memory(model: Any, inputs: torch.Tensor) -> torch.Tensor:
        model.limits = {True: min(fractions[-1] * total, free), False: 1000}
        return forward(model, inputs)

    monkeypatch.setattr(limited.Limited, "forward", forward_in_memory)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free - 2, total))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 2)
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda _: fractions[-1])
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda value, _: fractions.append(value)
    )
    monkeypatch.setattr(
        micro_batch.costs, "leave_headroom", lambda _: leave_headroom(torch.device("cuda", 0))
    )
    assert saved_size(train(*LIMITED_RUN, "+model.train_limit=0", "micro_batch_size=auto")) == size
    assert fractions[-1] == 0.9
    assert min(fractions) == pytest.approx(0.91 * free / total)


@pytest.mark.slow
@pytest.mark.usefixtures("limited_model")
def test_a_continued_run_keeps_its_size(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    words = (*LIMITED_RUN, "+model.train_limit=7", "micro_batch_size=auto")
    folder = train(*words)
    import limited  # type: ignore[import-not-found]

    assert (saved_size(folder), [n for n in limited.TRIED if n in (24, 12)]) == (6, [24, 12])
    capsys.readouterr()
    train(*words)
    assert "already finished" in capsys.readouterr().out
    other = train(*words, "resume=outputs/run", name="other")
    assert saved_size(other) == 6
    assert "micro_batch_size=auto" not in (other / "train.log").read_text()  # nothing was tried


@pytest.mark.slow
@pytest.mark.usefixtures("limited_model")
def test_a_run_of_which_no_sample_fits_is_rejected(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    folder = train(*LIMITED_RUN, "+model.train_limit=0", "micro_batch_size=auto", status=2)
    message = "error: model: fails in a trial of training, on inputs of shape [24, 1, 8, 8] "
    assert capsys.readouterr().err.splitlines()[-1].startswith(message)
    assert not (folder / "config.yaml").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("limited_model")
@pytest.mark.parametrize(
    "words",
    [
        *of_extension(
            (("mixing=mixup", "global_batch_size=18"),),  # mixup rejects the odd size 9
            (("compile=default", "compile.backend=eager", "compile.fullgraph=false"),),
        ),
        ("precision=fp16", "precision.init_scale=1024.0"),
    ],
)
def test_auto_works_with_mixing_compilation_and_a_loss_scaler(words: tuple[str, ...], train: Train) -> None:
    assert saved_size(train(*LIMITED_RUN, "+model.train_limit=9", "micro_batch_size=auto", *words)) in (6, 8)


def test_auto_without_a_limit_is_all_samples_of_the_rank(
    train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("tracker=local", "model.hidden=[8]", "duration=1", "micro_batch_size=auto")
    assert saved_size(train(*words)) == 64
    assert cli.main(["preview", *words]) == 0
    assert "64 samples x 1 x 1 rank(s) at most: auto finds what fits" in capsys.readouterr().out


@pytest.mark.real_gpu
def test_auto_fits_on_a_gpu(train: Train) -> None:
    folder = train("experiment=vit_fake", "tracker=local", "precision=bf16", "duration=2", "global_batch_size=16384",
                   "data.num_samples=16384", "eval_every=null", "save_every=null", "micro_batch_size=auto")  # fmt: skip
    assert 1 <= saved_size(folder) < 16384  # type: ignore[operator]
