"""`hydrant export` writes files that give the outputs of the trained model."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from full_disk import file_size_limit
from run_folders import weights
from training_runs import Train

from hydrant import cli
from hydrant.extensions.export import command as export

RUN = ("tracker=local", "duration=12", "log_every=1", "eval_every=6", "save_every=6")


@pytest.mark.slow
def test_export_replaces_only_files_and_needs_only_one_sample(
    train: Train, workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime")  # no wheel for Python 3.15
    folder = train(*RUN, "limit_val_samples=1", "model.hidden=[8]")
    os.mkfifo(workdir / "pipe.pt2")
    (workdir / "link.pt2").symlink_to("real.pt2")
    with file_size_limit(2000):
        statuses = [
            cli.main(["export", str(folder), "--format", file_format, "--output", "full.bin"])
            for file_format in ("safetensors", "torch_export", "onnx")
        ]
    assert statuses == [2, 2, 2]
    printed = capsys.readouterr().err.replace(f"{workdir}/", "")
    assert printed.count("--output: full.bin cannot be written (File too large)") == 3
    command = ["export", str(folder), "--format", "torch_export", "--output"]
    assert cli.main([*command, "pipe.pt2"]) == 2
    assert "--output: pipe.pt2 cannot be written (it is not a file)" in capsys.readouterr().err
    assert (workdir / "pipe.pt2").is_fifo()
    assert cli.main([*command, "link.pt2"]) == 0
    assert (workdir / "link.pt2").is_symlink()
    assert cli.main(["export", str(folder), "--output", "plain.safetensors"]) == 0
    for path in ("plain.safetensors", str(folder / "checkpoints/last/model.safetensors"), "train.csv"):
        (workdir / "train.csv").write_text("a,b")
        content = (workdir / path).read_bytes()
        assert cli.main(["export", str(folder), "--output", path]) == 2
        assert f"--output: {path} exists already".replace(
            f"{workdir}/", ""
        ) in capsys.readouterr().err.replace(f"{workdir}/", "")
        assert (workdir / path).read_bytes() == content
    assert cli.main(["preview", "--png", "train.csv"]) == 2
    assert "--png: train.csv exists, and is no .png file" in capsys.readouterr().err
    assert (workdir / "train.csv").read_text() == "a,b"
    (workdir / "umask").touch()
    modes = {(workdir / name).stat().st_mode for name in ("umask", "real.pt2", "plain.safetensors")}
    assert len(modes) == 1


def texts_in_safetensors(path: Path) -> dict[str, str]:
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        return file.metadata()


def texts_in_torch_export(path: Path) -> dict[str, str]:
    files = {"class_names": "", "preparation": ""}
    torch.export.load(path, extra_files=files)
    return files


def texts_in_onnx(path: Path) -> dict[str, str]:
    onnxruntime = pytest.importorskip("onnxruntime")  # no wheel for Python 3.15

    return onnxruntime.InferenceSession(str(path)).get_modelmeta().custom_metadata_map


def load_safetensors(path: Path, trained: Path) -> Callable[[torch.Tensor], torch.Tensor]:
    from safetensors.torch import load_file

    from hydrant.models import ConvNet

    model = ConvNet(input_shape=(1, 8, 8), num_classes=10, widths=[8, 16], dropout=0.1).eval()
    model.load_state_dict(load_file(path))
    return model


def load_torch_export(path: Path, trained: Path) -> Callable[[torch.Tensor], torch.Tensor]:
    return torch.export.load(path).module()


def load_onnx(path: Path, trained: Path) -> Callable[[torch.Tensor], torch.Tensor]:
    onnxruntime = pytest.importorskip("onnxruntime")  # no wheel for Python 3.15

    session = onnxruntime.InferenceSession(str(path))
    return lambda inputs: torch.from_numpy(session.run(None, {"inputs": inputs.numpy()})[0])


@pytest.mark.parametrize(
    ("file_format", "suffix", "load", "texts"),
    [
        ("safetensors", "safetensors", load_safetensors, texts_in_safetensors),
        ("torch_export", "pt2", load_torch_export, texts_in_torch_export),
        ("onnx", "onnx", load_onnx, texts_in_onnx),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_an_exported_model_gives_the_outputs_of_the_trained_model(
    trained: Path,
    file_format: str,
    suffix: str,
    load: Callable[[Path, Path], Any],
    texts: Callable[[Path], dict[str, str]],
) -> None:
    from hydrant.models import ConvNet

    if file_format == "onnx":
        pytest.importorskip("onnxruntime")  # no wheel for Python 3.15
    assert cli.main(["export", str(trained), "--format", file_format]) == 0
    model = ConvNet(input_shape=(1, 8, 8), num_classes=10, widths=[8, 16], dropout=0.1).eval()
    model.load_state_dict(weights(trained))
    inputs = torch.randn(5, 1, 8, 8)
    with torch.no_grad():
        exported = load(trained / "export" / f"model.{suffix}", trained)(inputs)
        torch.testing.assert_close(exported, model(inputs), rtol=1e-4, atol=1e-5)
    found = texts(trained / "export" / f"model.{suffix}")
    assert json.loads(found["class_names"]) == [str(n) for n in range(10)]
    assert json.loads(found["preparation"]) == {"mean": [0.3053], "std": [0.376]}


def test_weights_that_are_no_numbers_are_written_as_they_are(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 1)
    model.weight.data.fill_(float("nan"))
    path = tmp_path / "model.safetensors"
    export._write_safetensors(model, torch.zeros(1, 2), {}, path)
    assert path.exists()
