"""A process that has imported what tests on the stub import, and forks one for each group of them.

It is started with the variables of `environment`, but without the GPUs: each fork gets its own.
"""

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_START = "import torch, gpu.server; gpu.server.serve()"

_IMPORTED = ("pytest", "gpu.kernels", "torch._dynamo", "torch._inductor.cudagraph_trees")
"""What all tests import; the last by `torch._dynamo.reset()`, which ends each of them."""


class Server:
    """Runs pytest in forks of a process that starts with the first of them and ends with this object's `close`."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115

    def run(
        self,
        arguments: Sequence[str],
        variables: Mapping[str, str],
        folder: Path,
        output: Path,
        seconds: float,
    ) -> str:
        """Call pytest in a folder; return what it and, if that has ended, the server have printed."""
        if self._process is None:
            self._process = self._start(variables)
        request = {"arguments": arguments, "variables": variables, "seconds": seconds}
        request |= {"folder": str(folder), "output": str(output)}
        assert self._process.stdin
        assert self._process.stdout
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{json.dumps(request)}\n")
            self._process.stdin.flush()
        has_ended = not self._process.stdout.readline()
        text = output.read_text(errors="replace") if output.exists() else ""
        if has_ended:
            self._errors.seek(0)  # also where the server writes
            text += self._errors.read()
        return text

    def _start(self, variables: Mapping[str, str]) -> subprocess.Popen[str]:
        own = {key: value for key, value in variables.items() if key != "GPU_STUB_LEVEL"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._errors}
        return subprocess.Popen([sys.executable, "-c", _START], env=own, text=True, **pipes)

    def close(self) -> None:
        """End the server."""
        self._errors.close()
        if self._process is not None:
            self._process.communicate()


def serve() -> None:
    """Import; then fork for each line of the standard input, and print a line when that has ended."""
    _import()
    for line in sys.stdin:
        request = json.loads(line)
        process = os.fork()
        if process == 0:
            _run(request)
        _wait(process, request["seconds"])
        print("ended", flush=True)
    os._exit(0)


def _import() -> None:
    gc.disable()
    # Packages ask for GPUs when they are imported. Else CUDA would count them once for all forks.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    for name in _IMPORTED:
        importlib.import_module(name)
    from hydrant.safety.targets import preload
    from hydrant.sweeps.executors.base import Unit

    for path in Unit.paths_to_preload([]):
        preload(path)
    gc.freeze()
    gc.enable()


def _run(request: dict[str, Any]) -> None:
    """Become a process as `python -m pytest` with the stub; never return."""
    status = 1
    try:
        number = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for stream in (1, 2):
            os.dup2(number, stream)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ.clear()
        os.environ.update(request["variables"])
        os.chdir(request["folder"])
        sys.path[0] = request["folder"]
        sys.argv[:] = ["pytest", *request["arguments"]]
        import pytest

        from gpu.prepare import prepare

        prepare()
        status = pytest.main(request["arguments"])
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _wait(process: int, seconds: float) -> None:
    """Wait until a process ends, and end it after a time."""
    descriptor = os.pidfd_open(process)
    if not select.select([descriptor], [], [], seconds)[0]:
        os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    os.close(descriptor)
