"""preview, evaluate, export: what they say agrees with what training does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checks import weights

from hydrant import cli

RUN = ("tracker=local", "duration=12", "log_every=1", "eval_every=6", "save_every=6")


def test_preview_shows_what_a_run_does(
    train: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    config = (*RUN, "scheduler=wsd", "scheduler.warmup=25%", "+scheduler@schedules.weight_decay=linear")
    assert cli.main(["preview", *config, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    folder = train(*config)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert shown["total_updates"] == 12
    assert set(shown["schedules"]) == {"main.0.lr", "main.0.weight_decay"}
    assert shown["schedules"]["main.0.lr"] == [row["optim/lr"] for row in rows[1:]]
    assert shown["schedules"]["main.0.weight_decay"] == [row["optim/weight_decay"] for row in rows[1:]]


def test_preview_starts_nothing(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["preview", "optimizer=torch_muon", "--png", "lr.png"]) == 0
    assert [p.name for p in workdir.iterdir()] == ["lr.png"]
    text = capsys.readouterr().out
    for part in (
        "1,348 of 64 samples: 60.04 epochs",
        "85,002 parameters",
        "FLOPs",
        "main.0 (all): 84,480",
        "main.1 (all): 522",
    ):
        assert part in text


def test_preview_is_for_the_ranks_that_will_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["preview", "parallel.num_processes=2"]) == 0
    assert "micro-batch  32 samples x 1 x 2 rank(s)" in capsys.readouterr().out
    assert cli.main(["preview", "parallel.num_processes=2", "global_batch_size=63"]) == 2
    assert "63 is not divisible by 2 ranks" in capsys.readouterr().err


def test_preview_counts_what_the_model_costs(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["preview", "model.hidden=[]"]) == 0
    assert f"{2 * 64 * 10:,} FLOPs" in capsys.readouterr().out


@pytest.fixture
def trained(train: Callable[..., Path]) -> Path:
    return train(*RUN, "model=convnet", "model.widths=[8,16]", "keep_last=5")


def test_evaluate_gives_the_run_s_own_numbers(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = {
        row["num_updates"]: row
        for row in map(json.loads, (trained / "metrics.jsonl").read_text().splitlines())
    }
    for where, num_updates in ((trained, 12), (trained / "checkpoints" / "update_00000006", 6)):
        assert cli.main(["evaluate", str(where), "--json"]) == 0
        shown = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert shown["num_updates"] == num_updates
        for key in ("val/loss", "val/accuracy"):
            assert shown[key] == rows[num_updates][key]
    assert (
        cli.main(["evaluate", str(trained), "eval_batch_size=7", "--json"]) == 0
    )  # the last batch is smaller
    shown = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert shown["val/accuracy"] == pytest.approx(rows[12]["val/accuracy"])
    assert shown["val/loss"] == pytest.approx(rows[12]["val/loss"], rel=1e-5)
    assert cli.main(["evaluate", str(trained), "data.val_ratio=0.5"]) == 0
    assert "899 samples" in capsys.readouterr().out


def test_a_checkpoint_may_be_renamed_and_overridden_as_the_run_was(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def evaluated(*words: str) -> dict[str, Any]:
        assert cli.main(["evaluate", *words, "--json"]) == 0
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    plain = evaluated(str(trained))
    kept = (trained / "checkpoints" / "update_00000012").rename(trained / "checkpoints" / "the_one")
    shown = evaluated(str(kept))
    assert shown == plain | {"checkpoint": str(kept)}
    smoked = evaluated(str(kept), "debug=smoke")  # limits the samples; leaves the run's own model alone
    assert smoked["val/loss"] != plain["val/loss"]
    assert evaluated(str(kept), "debug=smoke", "limit_val_samples=null") == shown
    assert evaluated(str(kept), "experiment=digits_convnet") == shown  # with the run's own widths
    assert cli.main(["evaluate", str(kept), "model=mlp"]) == 2
    assert "model: the weights in" in capsys.readouterr().err


def test_a_run_s_own_options_are_those_that_are_overridden(
    train: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    own = ("data=synthetic", "data.input_shape=[1,8,8]", "data.num_classes=3", "data.num_samples=64",
           "data.num_val_samples=50", "global_batch_size=8")  # fmt: skip
    folder = train(*RUN, *own, "model.hidden=[8]")
    for words, num_samples in (((), 50), (("data.num_val_samples=20",), 20), (("data=synthetic",), 50)):
        assert cli.main(["evaluate", str(folder), *words]) == 0
        assert f"{num_samples} samples" in capsys.readouterr().out


def test_an_export_replaces_files_only_and_one_sample_is_enough(
    train: Callable[..., Path], workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = train(*RUN, "limit_val_samples=1", "model.hidden=[8]")
    os.mkfifo(workdir / "pipe.pt2")
    (workdir / "link.pt2").symlink_to("real.pt2")
    command = ["export", str(folder), "--format", "torch_export", "--output"]
    assert cli.main([*command, "pipe.pt2"]) == 2
    assert "--output: pipe.pt2 cannot be written (it is no file)" in capsys.readouterr().err
    assert (workdir / "pipe.pt2").is_fifo()
    assert cli.main([*command, "link.pt2"]) == 0
    assert (workdir / "link.pt2").is_symlink()
    assert cli.main(["export", str(folder), "--output", "plain.safetensors"]) == 0
    (workdir / "umask").touch()
    modes = {(workdir / name).stat().st_mode for name in ("umask", "real.pt2", "plain.safetensors")}
    assert len(modes) == 1


@pytest.mark.slow
def test_a_reader_that_has_read_enough_is_no_error() -> None:
    hydrant = Path(sys.executable).with_name("hydrant")
    with subprocess.Popen(
        [hydrant, "preview", "--json", "duration=50000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as shown:
        assert shown.stdout is not None
        assert shown.stderr is not None
        shown.stdout.read(1)
        shown.stdout.close()
        assert shown.wait(120) == 141
        assert shown.stderr.read() == b""


def load_safetensors(path: Path, trained: Path) -> Callable[[torch.Tensor], torch.Tensor]:
    from safetensors.torch import load_file

    from hydrant.models import ConvNet

    model = ConvNet(input_shape=(1, 8, 8), num_classes=10, widths=[8, 16], dropout=0.1).eval()
    model.load_state_dict(load_file(path))
    return model


def load_torch_export(path: Path, trained: Path) -> Callable[[torch.Tensor], torch.Tensor]:
    return torch.export.load(path).module()


def load_onnx(path: Path, trained: Path) -> Callable[[torch.Tensor], torch.Tensor]:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path))
    return lambda inputs: torch.from_numpy(session.run(None, {"inputs": inputs.numpy()})[0])


@pytest.mark.parametrize(
    ("form", "suffix", "load"),
    [
        ("safetensors", "safetensors", load_safetensors),
        ("torch_export", "pt2", load_torch_export),
        ("onnx", "onnx", load_onnx),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_an_exported_model_gives_the_trained_model_s_outputs(
    trained: Path, form: str, suffix: str, load: Callable[[Path, Path], Any]
) -> None:
    from hydrant.models import ConvNet

    assert cli.main(["export", str(trained), "--format", form]) == 0
    model = ConvNet(input_shape=(1, 8, 8), num_classes=10, widths=[8, 16], dropout=0.1).eval()
    model.load_state_dict(weights(trained))
    inputs = torch.randn(5, 1, 8, 8)
    with torch.no_grad():
        exported = load(trained / "export" / f"model.{suffix}", trained)(inputs)
        torch.testing.assert_close(exported, model(inputs), rtol=1e-4, atol=1e-5)
