"""The image: in order, without root, with the exact versions; and its install commands work."""

import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from processes import printed
from repository import ROOT

Instruction = tuple[str, str]


@pytest.fixture(scope="module")
def instructions() -> list[Instruction]:
    """(keyword, arguments) of each instruction, its lines joined."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    return [
        (keyword, rest.strip())
        for keyword, _, rest in (line.partition(" ") for line in lines if line.strip())
    ]


def arguments(instructions: list[Instruction], keyword: str) -> list[str]:
    return [rest for found, rest in instructions if found == keyword]


def test_base_is_cuda_of_a_fixed_version(instructions: list[Instruction]) -> None:
    (base,) = arguments(instructions, "FROM")
    assert instructions[0][0] == "FROM"
    assert re.fullmatch(r"nvidia/cuda:\d+\.\d+\.\d+-\w+-ubuntu\d+\.\d+", base)


def test_ends_as_a_plain_user_and_runs_hydrant(instructions: list[Instruction]) -> None:
    (user,) = arguments(instructions, "USER")
    assert user.isdigit()
    assert user != "0"
    keywords = [keyword for keyword, _ in instructions]
    assert "RUN" not in keywords[keywords.index("USER") :]
    assert "COPY" not in keywords[keywords.index("USER") :]
    assert arguments(instructions, "ENTRYPOINT") == ['["hydrant"]']


def test_every_install_is_constrained(instructions: list[Instruction]) -> None:
    installs = re.findall(r"pip install [^&]*", " && ".join(arguments(instructions, "RUN")))
    assert len(installs) == 3
    assert all("--constraint constraints.txt" in install for install in installs)
    assert "://" not in (ROOT / "Dockerfile").read_text()


def test_the_build_context_holds_what_is_copied_and_little_else(instructions: list[Instruction]) -> None:
    copied = {name for rest in arguments(instructions, "COPY") for name in rest.split()[:-1]}
    rules = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in rules
    assert {rule[1:] for rule in rules if rule.startswith("!")} == copied
    assert all((ROOT / name).exists() for name in copied)


@pytest.mark.slow
def test_the_install_commands_work(instructions: list[Instruction], tmp_path: Path) -> None:
    """The RUN lines that use pip, in the order of the file, with only what was copied by then."""
    context, venv = tmp_path / "context", tmp_path / "venv"
    context.mkdir()
    bare = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "UV_NO_CACHE")}
    base = f"{Path(sys.base_prefix) / 'bin'}:{os.environ['PATH']}"
    environment = bare | {"VIRTUAL_ENV": str(venv), "PATH": f"{venv / 'bin'}:{base}"}

    def run(command: str) -> str:
        return printed("bash", "-ec", command, cwd=context, env=environment)

    for keyword, rest in instructions:
        if keyword == "COPY":
            *sources, target = rest.split()
            for source in sources:
                destination = context / target / source if target == "./" else context / target
                copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
                copy(ROOT / source, destination)
        elif keyword == "RUN" and "pip install" in rest:
            run(rest)
    assert "cosine" in run("hydrant train --help")
    assert str(venv) in run("command -v hydrant")
    pins = set((ROOT / "constraints.txt").read_text().split())
    installed = run("uv pip freeze").split()
    assert {name for name in installed if name.startswith(("torch==", "hydra-core==", "wandb=="))} <= pins
