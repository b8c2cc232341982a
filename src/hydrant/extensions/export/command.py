"""`export`: write the model of a run for use elsewhere, and check it against the model."""

import copy
import io
import json
import os
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hydrant.config.command_line import Flags, writing_to
from hydrant.data.base import ON_HOST
from hydrant.errors import ConfigError, HydrantError, check_known, typed_line
from hydrant.installation import require_extra
from hydrant.records import Answer
from hydrant.runs.folder import EXPORT, named_run
from hydrant.runs.load import SavedRun, open_run
from hydrant.terminal.console import relative, tell
from hydrant.training.checkpoint.storage import system_error

_SUFFIXES = {"safetensors": "safetensors", "torch_export": "pt2", "onnx": "onnx"}


class Export(Answer):
    """The model file.

    Attributes:
        largest_difference: Between the outputs of the file and of the model.
    """

    file: str
    format: str
    checkpoint: str
    largest_difference: float


def main(arguments: Sequence[str]) -> int:
    """Write and check a model file and return the exit status."""
    options, words = Flags("export", format="safetensors", output=Path, weights=str).split(arguments)
    run = named_run("export", words)
    check_known("--format", "format", options.format, _SUFFIXES)
    if options.format == "onnx":
        require_extra("onnx", ("onnx", "onnxscript", "onnxruntime"), "--format", "onnx")
    _check_free(options.output)
    saved = open_run(run, words[1:], weights=options.weights)
    model = saved.plan.task.model.cpu().eval()
    path = options.output or saved.folder / EXPORT / f"model.{_SUFFIXES[options.format]}"
    names = saved.plan.data.class_names
    metadata = {} if names is None else {"class_names": json.dumps(names)}
    if prepared := _preparation(saved):
        metadata["preparation"] = json.dumps(prepared)
    difference = _write(options.format, model, _sample_inputs(saved), metadata, path)
    file, checkpoint = relative(path.resolve()), relative(saved.checkpoint)
    equal = "all is equal" if difference == 0 else f"the outputs differ by {difference:.1e} at most"
    note = "; it takes prepared samples: the numbers are in the file as 'preparation'" if prepared else ""
    content = {"file": file, "format": options.format, "checkpoint": checkpoint}
    tell(
        f"{file}: {options.format} of {saved.source}; {equal}{note}",
        {**content, "largest_difference": difference},
    )
    return 0


def _check_free(output: Path | None) -> None:
    """Check that the user's file does not exist yet: it may be a checkpoint, or anything else.

    Raises:
        ConfigError: it exists.
    """
    if output is not None and output.exists():
        problem = "exists already" if output.is_file() else "cannot be written (it is not a file)"
        raise ConfigError("--output", f"{output} {problem}", remedy="give another path")


def _preparation(saved: SavedRun) -> dict[str, Any]:
    """Return by which numbers the data prepare what the model takes; empty if they do not."""
    source: Any = saved.plan.data.val
    parts = {key: list(getattr(source, key, None) or ()) for key in ("mean", "std")}
    normalizes = any(parts["mean"]) or any(scale != 1 for scale in parts["std"])
    return (parts if normalizes else {}) | dict(saved.plan.data.statistics)


def _write(
    file_format: str, model: nn.Module, inputs: Tensor, metadata: Mapping[str, str], path: Path
) -> float:
    """Write a model file under a temporary name, check it and rename it. Return the largest difference of outputs.

    The file holds `metadata`.

    Raises:
        ConfigError: the file cannot be written.
        HydrantError: the format cannot hold the model, or the file gives other outputs.
    """
    path = path.resolve()  # write through a link instead of replacing it
    try:
        with writing_to("--output", path), tempfile.TemporaryDirectory(dir=path.parent) as folder:
            file = Path(folder, path.name)
            difference = _WRITERS[file_format](model, inputs, metadata, file)
            umask = os.umask(0)
            os.umask(umask)
            file.chmod(0o666 & ~umask)  # safetensors lets the user alone read it
            file.replace(path)
    except HydrantError:
        raise
    except Exception as error:  # an exporter passes on any error of the model's code
        message = f"{file_format} cannot hold this model ({typed_line(error)})"
        raise HydrantError(message, remedy="try another --format") from error
    return difference


def _sample_inputs(saved: SavedRun) -> Tensor:
    """Return up to 8 validation inputs on the host, (B, *input_shape). B is at least 2, as torch.export fixes a 1."""
    val = saved.plan.data.val
    inputs = next(iter(val.batches(ON_HOST, min(8, val.num_samples)))).inputs
    return inputs if len(inputs) > 1 else torch.cat([inputs, inputs])


def _write_safetensors(model: nn.Module, _: Tensor, metadata: Mapping[str, str], path: Path) -> float:
    from safetensors import SafetensorError
    from safetensors.torch import load_model, save_model

    try:
        save_model(model, str(path), dict(metadata) or None)
    except SafetensorError as error:
        raise system_error(error) from error
    loaded = copy.deepcopy(model)
    for tensor in (*loaded.parameters(), *loaded.buffers()):
        tensor.data.zero_()
    load_model(loaded, str(path))
    torch.testing.assert_close(loaded.state_dict(), model.state_dict(), rtol=0, atol=0, equal_nan=True)
    return 0.0


def _write_torch_export(model: nn.Module, inputs: Tensor, metadata: Mapping[str, str], path: Path) -> float:
    program = torch.export.export(model, (inputs,), dynamic_shapes=({0: torch.export.Dim("batch", min=1)},))
    content = io.BytesIO()  # if the disk is full, torch ends the process with its own writer
    torch.export.save(program, content, extra_files=dict(metadata))
    path.write_bytes(content.getbuffer())
    with warnings.catch_warnings():  # torch 2.11 reads weights from bytes
        warnings.filterwarnings("ignore", "The given buffer is not writable")
        exported = torch.export.load(path)
    return _compare(model, exported.module(), inputs)


def _write_onnx(model: nn.Module, inputs: Tensor, metadata: Mapping[str, str], path: Path) -> float:
    import onnx
    import onnxruntime

    batch = torch.export.Dim("batch", min=1)
    program = torch.onnx.export(
        model,
        (inputs,),
        input_names=["inputs"],
        output_names=["logits"],
        dynamo=True,
        dynamic_shapes=({0: batch},),
        verbose=False,
    )
    assert program is not None
    content = program.model_proto
    if metadata:
        onnx.helper.set_model_props(content, dict(metadata))
    path.write_bytes(content.SerializeToString())
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def infer(samples: Tensor) -> Tensor:
        return torch.from_numpy(session.run(None, {"inputs": samples.numpy()})[0])

    return _compare(model, infer, inputs)


def _compare(model: nn.Module, exported: Callable[[Tensor], Tensor], inputs: Tensor) -> float:
    """Return the largest difference between the outputs of model and export, for several samples and for one.

    Raises:
        HydrantError: they differ by more than float32 rounding.
    """
    largest = 0.0
    with torch.no_grad():
        for part in (inputs, inputs[:1]):
            expected, outputs = model(part), exported(part)
            largest = max(largest, float((expected - outputs).abs().max()))
            if not torch.allclose(expected, outputs, rtol=1e-4, atol=1e-5):
                message = f"the export gives other outputs than the model: they differ by {largest:.2e}"
                raise HydrantError(message)
    return largest


_WRITERS = {"safetensors": _write_safetensors, "torch_export": _write_torch_export, "onnx": _write_onnx}
