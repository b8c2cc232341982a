"""Fixtures of all tests: a working folder, training in this process, and a process that no test changes."""

import gc
import logging
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

# Set before torch is imported, because the workers of pytest-xdist share the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Set before Trackio is imported, because it reads the variable then: tests leave nothing in the user's cache.
os.environ["TRACKIO_DIR"] = f"{tempfile.gettempdir()}/hydrant-tests-trackio"

import end_of_worker  # first
import pytest
import torch
from example_projects import use_example
from quick_runs import PICTURES, draw_pixels
from repository import ROOT
from shared_configs import FOLDER, OPTIONS, ConfigLoaderImpl, QuickComposer, SharingComposer, options_once
from spawned import serve_forks
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from hydrant import cli, imports
from hydrant.config import compose
from hydrant.data import vision
from hydrant.runs import reporter

pytest_plugins = ["answers", "shared_fixtures", "strange_experiments", "wandb_fixtures", "gpu.plugin"]

_PIXELS = pytest.MonkeyPatch()
draw_pixels(_PIXELS.setattr)
serve_forks()

# Some tests train in forks of this process. Fake tensors on CUDA, which torch.compile and some tests make, register a
# device. If the first backward pass comes after that, torch starts a thread for the device, and forks cannot train.
torch.ones(1, requires_grad=True).sum().backward()


def pytest_configure(config: pytest.Config) -> None:
    end_of_worker.worker_id = os.getpid() if hasattr(config, "workerinput") else -1


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Let the garbage collector never visit what collecting makes: a million objects, which live on.

    What tests import later lives on too. By Python's thresholds, visiting it takes a twentieth of the tests' time.

    torch's loggers propagate: before each part of a test, pytest puts two handlers on each that does not, 70 of torch.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        for name in [name for name in logging.root.manager.loggerDict if name.startswith("torch")]:
            logging.getLogger(name).propagate = True
        gc.freeze()
        gc.set_threshold(10_000, 10, 10)
        gc.enable()


_PLACES = {"extensions", "attack", "examples", "gpu", "project"}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import none of the tests of extensions if `-m` leaves them out: they are two thirds of the files."""
    words = config.option.markexpr
    is_core = "not extension" in words and " or " not in words
    return True if is_core and collection_path.name in _PLACES else None


@pytest.hookimpl(tryfirst=True)  # before `-m` leaves out what has no marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of extensions, and of what uses all: figures, attacks, examples, the repository, the stub of CUDA.

    Another test that needs an extension says so by the marker. The core's run first, then those of the repository,
    some of which take a minute: at the end, other processes would wait for them.
    """
    for item in items:
        if _PLACES.intersection(item.path.relative_to(ROOT).parts) or item.get_closest_marker("figures"):
            item.add_marker("extension")
    items.sort(
        key=lambda i: (i.get_closest_marker("extension") is not None, "tests/project/" not in i.nodeid)
    )


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def user_module(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """`user_module(name, source)`: write a module to the current folder, and make it importable in this process."""

    def write(name: str, source: str) -> None:
        (workdir / f"{name}.py").write_text(source)
        monkeypatch.syspath_prepend(workdir)

    return write


@pytest.fixture
def gan(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The options and the module of examples/gan: two models with a loss each."""
    return use_example("gan", monkeypatch)


@pytest.fixture
def logged_warnings(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Return the warnings that Hydrant has logged so far."""
    caplog.set_level(logging.INFO, logger="hydrant")
    return lambda: [
        r.getMessage() for r in caplog.records if r.name == "hydrant" and r.levelno >= logging.WARNING
    ]


@pytest.fixture
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs train on the CPU also where a GPU is: in this process, because the test computes there what they do,
    and in processes that it starts, such as ranks, which may be more than there are GPUs.
    """
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def pytest_make_parametrize_id(val: object) -> str | None:
    """Name a test after the overrides or settings that it is called with."""
    if isinstance(val, dict) and all(isinstance(item, str | int | float) for item in val.values()):
        val = [f"{key}={item}" for key, item in val.items()]
    if isinstance(val, tuple | list) and all(isinstance(word, str) for word in val):
        return " ".join(val) or "none"
    return None


def process_state() -> dict[str, Any]:
    """Return what a run must not change, because its process may live on, such as a notebook."""
    return {
        "sys.argv": list(sys.argv),
        "sys.exit": sys.exit,
        "sys.excepthook": sys.excepthook,
        "variables": {k: v for k, v in os.environ.items() if k.startswith(("WANDB", "HYDRA"))},
        "signal handlers": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
        "optimizer hooks": [list(_global_optimizer_pre_hooks), list(_global_optimizer_post_hooks)],
        "profiler": torch.autograd.profiler._is_profiler_enabled,
    }


@pytest.fixture(autouse=True)
def _process_is_unchanged() -> Iterator[None]:
    """Fail a test that leaves a change which the next run in this process would notice."""
    before = process_state()
    yield
    assert process_state() == before


@pytest.fixture(autouse=True)
def _restore_torch_settings() -> Iterator[None]:
    """Restore the settings of torch that a run leaves in its process: number formats, determinism, compiled code."""
    matmul, tf32 = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    benchmark = torch.backends.cudnn.benchmark
    yield
    torch.backends.cudnn.benchmark = benchmark
    torch.set_float32_matmul_precision(matmul)
    torch.backends.cudnn.allow_tf32 = tf32
    if torch.are_deterministic_algorithms_enabled():
        torch.use_deterministic_algorithms(False)
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
        torch.compiler.set_stance("default")


@pytest.fixture(autouse=True)
def _figures_have_one_pixel(request: pytest.FixtureRequest) -> Iterator[None]:
    if draws := request.node.get_closest_marker("figures") is not None:
        _PIXELS.undo()
        sys.modules[PICTURES]._picture.cache_clear()
    yield
    if draws:
        draw_pixels(_PIXELS.setattr)


@pytest.fixture(scope="session", autouse=True)
def _no_project_is_trusted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Leave the user's list of trusted projects alone: every command reads it, and tests would make it long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("user_config")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _what_each_run_repeats_is_quick() -> Iterator[None]:
    """Let fsync do nothing in this process, read the digits once, and ask Git once for Hydrant's commit, which each run
    records, and for the commit of the working folder only if it is a repository.

    A run calls fsync twenty times, and only a loss of power needs it. Counting the objects that collecting has frozen
    takes as long as a scan; there are some, so `paused_gc` moves no others.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)  # which refuses a wrong descriptor too
        patch.setattr(reporter, "commit", cache(reporter.commit))
        patch.setattr(vision, "_table", cache(vision._table))
        ask_git = reporter._git
        patch.setattr(reporter, "_git", lambda *words: ask_git(*words) if Path(".git").exists() else None)
        patch.setattr(imports, "gc", SimpleNamespace(**vars(gc) | {"get_freeze_count": lambda: 1}))
        yield


_OF_COMPOSING = re.compile(r"config/test_(compose|file_source|groups|hydra_\w+|job_composer)\.py")


@pytest.fixture(scope="session", autouse=True)
def _folder_of_shared_configs(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> None:
    base, is_worker = tmp_path_factory.getbasetemp(), hasattr(pytestconfig, "workerinput")
    folder = (base.parent if is_worker else base) / "configs"
    folder.mkdir(exist_ok=True)
    os.environ[FOLDER] = str(folder)


@pytest.fixture(scope="module", autouse=True)
def _configs_are_shared(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compose most configs from others, except in the tests of composing."""
    with pytest.MonkeyPatch.context() as patch:
        of_composing = _OF_COMPOSING.search(request.path.as_posix())
        patch.setattr(compose, "Composer", QuickComposer if of_composing else SharingComposer)
        patch.setattr(ConfigLoaderImpl, "get_group_options", OPTIONS if of_composing else options_once)
        yield


@pytest.fixture
def train(workdir: Path) -> Callable[..., Path]:
    """`train(*overrides, name="run", status=0)`: train in this process; assert the exit status; return the folder."""

    def run(*overrides: str, name: str = "run", status: int = 0) -> Path:
        assert cli.main(["train", f"name={name}", *overrides]) == status
        return workdir / "outputs" / name

    return run


_TRAINED = dict[tuple[str, ...], Path]()


@pytest.fixture
def train_once(
    train: Callable[..., Path], workdir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Path]:
    """As `train`, but the tests of this process that give it the same words share a run: each has a copy."""

    def run(*words: str) -> Path:
        if words not in _TRAINED:
            _TRAINED[words] = Path(shutil.move(train(*words), tmp_path_factory.mktemp("trained")))
        return Path(shutil.copytree(_TRAINED[words], workdir / "outputs" / "run", symlinks=True))

    return run


@pytest.fixture
def on_cpu(train: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """As `train`, but on the CPU."""

    def run(*words: str, name: str) -> Path:
        with monkeypatch.context() as patches:
            patches.setattr(torch.cuda, "is_available", lambda: False)
            return train(*words, name=name)

    return run
