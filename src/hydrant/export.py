"""`export`: a run's model for use elsewhere, checked against the model itself."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hydrant.config.arguments import Flags, written
from hydrant.errors import ConfigError, ExportError, HydrantError, typed_line, unknown_name

if TYPE_CHECKING:
    from torch import Tensor, nn

_SUFFIXES = {"safetensors": "safetensors", "torch_export": "pt2", "onnx": "onnx"}


def main(arguments: Sequence[str]) -> int:
    """Write and check a model file; the exit status."""
    parser = Flags("export")
    parser.add_argument("--format", default="safetensors")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--weights", default="model")
    options, rest = parser.split(arguments)
    if not rest or "=" in rest[0]:
        raise ConfigError("", "export what? Give a run folder: hydrant export outputs/lr_study --format onnx")
    if options.format not in _SUFFIXES:
        raise unknown_name("--format", "format", options.format, _SUFFIXES)
    if options.format == "onnx":
        _require_onnx()
    from hydrant.saved import open_run  # brings in torch

    saved = open_run(rest[0], rest[1:], weights=options.weights)
    model = saved.prepared.task.model.cpu()
    children = [name for name, _ in model.named_children()] if type(model).__name__ == "ModuleDict" else []
    if children and options.format != "safetensors":
        told = f"the run holds several models ({', '.join(children)}), which have no common input; use safetensors"
        raise ConfigError("--format", told)
    inputs = _samples(saved)
    path = options.output or saved.folder / "export" / f"model.{_SUFFIXES[options.format]}"
    if path.exists() and not path.is_file():
        raise ConfigError("--output", f"{path} cannot be written (it is no file); give another")
    path = path.resolve()  # a link stays one
    try:
        with written("--output", path), tempfile.TemporaryDirectory(dir=path.parent) as folder:
            aside = Path(folder, path.name)
            worst = _WRITERS[options.format](model, inputs, aside)
            aside.chmod(0o666 & ~_umask())
            aside.replace(path)
    except HydrantError:
        raise
    except Exception as error:  # exporters raise whatever a model's code leads them to
        told = f"{options.format} cannot hold this model ({typed_line(error)}); try another --format"
        raise ExportError(told) from error
    equal = "all is equal" if worst == 0 else f"the outputs differ by {worst:.1e} at most"
    print(f"{path}: {options.format} of {saved.checkpoint}; {equal}")
    return 0


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def _require_onnx() -> None:
    from importlib.util import find_spec

    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
    if missing:
        raise ConfigError("--format", f"onnx needs {', '.join(missing)}: pip install 'hydrant[onnx]'")


def _samples(saved: object) -> Tensor:
    """A few validation samples on the host, (B, *input_shape); two at least, for a batch of one is a special case."""
    import torch

    from hydrant.data import StreamSpec
    from hydrant.saved import SavedRun

    assert isinstance(saved, SavedRun)
    host = StreamSpec(0, 1, 1, 0, 1, torch.device("cpu"))
    inputs = next(iter(saved.prepared.val.batches(host, min(8, saved.prepared.val.num_samples)))).inputs
    return inputs if len(inputs) > 1 else torch.cat([inputs, inputs])


def _write_safetensors(model: nn.Module, inputs: Tensor, path: Path) -> float:
    import copy

    import torch
    from safetensors.torch import load_model, save_model
    from torch import nn

    save_model(model, str(path))
    loaded = copy.deepcopy(model)
    for tensor in (*loaded.parameters(), *loaded.buffers()):
        tensor.data.zero_()
    load_model(loaded, str(path))
    if isinstance(model, nn.ModuleDict):  # which has no outputs
        for name, tensor in model.state_dict().items():
            if not torch.equal(tensor, loaded.state_dict()[name]):
                raise ExportError(f"the export holds another {name} than the model")
        return 0.0
    return _compare(model, loaded, inputs)


def _write_torch_export(model: nn.Module, inputs: Tensor, path: Path) -> float:
    import torch

    batch = torch.export.Dim("batch", min=1)
    program = torch.export.export(model, (inputs,), dynamic_shapes=({0: batch},))
    torch.export.save(program, path)
    return _compare(model, torch.export.load(path).module(), inputs)


def _write_onnx(model: nn.Module, inputs: Tensor, path: Path) -> float:
    import onnxruntime
    import torch

    batch = torch.export.Dim("batch", min=1)
    torch.onnx.export(
        model, (inputs,), str(path), input_names=["inputs"], output_names=["logits"], dynamo=True,
        dynamic_shapes=({0: batch},), external_data=False, verbose=False,
    )  # fmt: skip
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def infer(samples: Tensor) -> Tensor:
        return torch.from_numpy(session.run(None, {"inputs": samples.numpy()})[0])

    return _compare(model, infer, inputs)


def _compare(model: nn.Module, exported: Callable[[Tensor], Tensor], inputs: Tensor) -> float:
    """The largest difference of outputs, for several samples and for one.

    Raises:
        ExportError: they differ by more than float32 rounding explains.
    """
    import torch

    worst = 0.0
    with torch.no_grad():
        for part in (inputs, inputs[:1]):
            expected, got = model(part), exported(part)
            worst = max(worst, float((expected - got).abs().max()))
            if not torch.allclose(expected, got, rtol=1e-4, atol=1e-5):
                raise ExportError(
                    f"the export gives other outputs than the model: they differ by {worst:.2e}"
                )
    return worst


_WRITERS = {"safetensors": _write_safetensors, "torch_export": _write_torch_export, "onnx": _write_onnx}
