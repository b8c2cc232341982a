"""Tests marked `cuda` are reported one by one, though a process with the stub runs many together."""

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from gpu import build
from repository import ROOT

TESTS = """
import os
import pytest, torch

used = []

@pytest.fixture(scope="module")
def resource():
    yield used.append(os.getpid())

def test_here(resource):
    assert not torch.cuda.is_available()

@pytest.mark.cuda
@pytest.mark.parametrize("number", [1, 2, 3])
def test_numbers(number, resource):
    assert torch.full((1,), number, device="cuda").item() != 3
    assert len(used) == 1

@pytest.mark.cuda
def test_skips():
    pytest.skip("for a reason")

@pytest.mark.cuda(devices=2)
def test_devices():
    assert torch.cuda.device_count() == 2

@pytest.mark.real_gpu
def test_of_a_gpu(): ...

@pytest.mark.cuda
def test_left_out(): ...

@pytest.mark.cuda
def test_ends_the_process():
    os.abort()

@pytest.mark.cuda
def test_comes_too_late(): ...
"""
ELSEWHERE = """
def test_of_another_file(): ...
"""


def outcomes(folder: Path, *options: str) -> dict[str, tuple[str, str]]:
    """Run the tests above; return how each has ended, and the message."""
    others = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "GPU_STUB_", "LD_"))}
    others["PYTHONPATH"] = str(ROOT / "tests" / "support")
    command = ["pytest", "-q", "-p", "no:cacheprovider", "--junitxml=results.xml", *options]
    subprocess.run([sys.executable, "-m", *command], env=others, cwd=folder, check=False)
    found: dict[str, tuple[str, str]] = {}
    for case in ElementTree.parse(folder / "results.xml").iter("testcase"):
        endings = [
            (child.tag, f"{child.get('message')}\n{child.text}")
            for child in case
            if child.tag != "system-out"
        ]
        found[case.get("name") or ""] = endings[0] if endings else ("passed", "")
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["gpu.plugin"]\n')
    marks = 'addopts = "-p no:randomly"\nmarkers = ["cuda: of CUDA", "real_gpu: of a GPU"]'
    (tmp_path / "pyproject.toml").write_text(f"[tool.pytest.ini_options]\n{marks}\n")
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "test_later.py").write_text(ELSEWHERE)
    return tmp_path


@pytest.mark.slow
def test_each_test_has_its_outcome(folder: Path) -> None:
    found = outcomes(folder, "-n", "0", "-k", "not left_out")
    ends = {name: ending for name, (ending, _) in found.items()}
    assert ends == {
        "test_here": "passed",
        "test_numbers[1]": "passed",
        "test_numbers[2]": "passed",
        "test_numbers[3]": "failure",
        "test_skips": "skipped",
        "test_devices": "passed",
        "test_of_a_gpu": "skipped",
        "test_ends_the_process": "error",
        "test_comes_too_late": "error",
        "test_of_another_file": "passed",
    }
    assert "assert 3 != 3" in found["test_numbers[3]"][1]
    assert "for a reason" in found["test_skips"][1]
    assert "needs a real GPU" in found["test_of_a_gpu"][1]
    for name in ("test_ends_the_process", "test_comes_too_late"):
        assert "Fatal Python error: Aborted" in found[name][1]
        assert "in test_ends_the_process" in found[name][1]


@pytest.mark.slow
def test_the_workers_of_xdist_report_the_same(folder: Path) -> None:
    alone = outcomes(folder, "-n", "0")
    assert {
        name: ending for name, (ending, _) in outcomes(folder, "-n", "2", "--dist", "loadfile").items()
    } == {name: ending for name, (ending, _) in alone.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mark", "ending"), [("", "skipped"), ("cuda", "error"), ("cuda(stub=True) or not slow", "error")]
)
def test_without_a_compiler_they_are_skipped_unless_cuda_is_asked_for(
    mark: str, ending: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    found, message = outcomes(folder, "-n", "0", "-k", "test_skips", "-m", mark)["test_skips"]
    assert found == ending
    assert "apt-get install g++ binutils" in message


@pytest.mark.slow
def test_they_fail_if_the_stub_does_not_compile(folder: Path) -> None:
    broken = (
        "import gpu.plugin\ndef environment(gpus): raise gpu.plugin.DoesNotCompile('error: no member cudaNew')\n"
        "gpu.plugin.environment = environment\n"
    )
    with (folder / "conftest.py").open("a") as file:
        file.write(broken)
    ending, message = outcomes(folder, "-n", "0", "-k", "test_skips")["test_skips"]
    assert ending == "error"
    assert "error: no member cudaNew" in message


def test_sources_that_do_not_compile_are_told_from_a_lack_of_tools(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "g++"
    compiler.write_text("#!/bin/sh\necho error: no member cudaNew >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(build, "BUILDS", tmp_path / "builds")
    with pytest.raises(build.DoesNotCompile, match="error: no member cudaNew"):
        build.library_folder()
    assert list(build.BUILDS.iterdir()) == []
