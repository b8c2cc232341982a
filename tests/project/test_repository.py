"""What holds for the repository as a whole: pins, scripts, hooks and links."""

import ast
import importlib
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from public_names import public_names
from repository import ROOT, conf_files
from sweeps import LAUNCHERS

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
SCRIPTS = [
    ROOT / ".ci" / "run",
    *sorted(path for path in (ROOT / "scripts").iterdir() if path.is_file() and not path.suffix),
]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "benchmarks" / "README.md",
    ROOT / "multirun" / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "SECURITY.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
DOCS = [page for page in PAGES if page.is_relative_to(ROOT / "docs")]


def pins() -> dict[str, list[Requirement]]:
    found: dict[str, list[Requirement]] = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        requirement = Requirement(line)
        found.setdefault(requirement.name, []).append(requirement)
    return found


def direct_requirements() -> list[Requirement]:
    project = PROJECT["project"]
    listed = [
        *project["dependencies"],
        *(line for extra in project["optional-dependencies"].values() for line in extra),
        *PROJECT["dependency-groups"]["dev"],
    ]
    return [Requirement(line) for line in listed]


def test_constraints_pin_everything_to_one_version_without_hosts() -> None:
    for name, requirements in pins().items():
        for requirement in requirements:
            assert requirement.url is None, name
            assert [specifier.operator for specifier in requirement.specifier] == ["=="], name


@pytest.mark.parametrize("requirement", direct_requirements(), ids=str)
def test_constraints_satisfy_pyproject(requirement: Requirement) -> None:
    assert requirement.name in pins()
    for pin in pins()[requirement.name]:
        (exact,) = pin.specifier
        assert exact.version in requirement.specifier


@pytest.mark.parametrize("extra", PROJECT["project"]["optional-dependencies"])
def test_dev_group_holds_every_extra(extra: str) -> None:
    held = {requirement.partition(";")[0] for requirement in PROJECT["dependency-groups"]["dev"]}
    assert set(PROJECT["project"]["optional-dependencies"][extra]) <= held


def test_no_host_is_written_into_what_installs() -> None:
    for path in (ROOT / "pyproject.toml", ROOT / "constraints.txt", ROOT / "Dockerfile", *SCRIPTS):
        assert "://" not in path.read_text(), path
    assert "/uv.lock" in (ROOT / ".gitignore").read_text().splitlines()  # it would hold the registry's host


def test_the_supported_pythons_are_the_tested_and_the_documented_ones() -> None:
    required: str = PROJECT["project"]["requires-python"]
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    with_all = next(step["with"] for step in jobs["ci"]["steps"] if "python-version" in step.get("with", {}))
    tested = [with_all["python-version"], *jobs["pythons"]["strategy"]["matrix"]["python-version"]]
    minors = [int(version.removeprefix("3.")) for version in tested]
    assert minors == list(range(minors[0], minors[-1] + 1))
    assert required == f">=3.{minors[0]},<3.{minors[-1] + 1}"
    template = ROOT / "src" / "hydrant" / "extensions" / "init" / "template" / "pyproject.toml.template"
    assert f'requires-python = "{required}"' in template.read_text()
    in_words = f"Python {', '.join(tested[:-1])} or {tested[-1]}"
    for page in ("README.md", "docs/start/install.md"):
        assert in_words in " ".join((ROOT / page).read_text().split())


def _texts_for_users() -> Iterator[tuple[Path, str]]:
    """Yield every option file, and every string of the package that is no docstring."""
    for path in conf_files().values():
        yield path, path.read_text()
    for path in (ROOT / "src").rglob("*.py"):
        tree = ast.parse(path.read_text())
        statements = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in statements:
                yield path, node.value


@pytest.mark.slow
def test_no_message_names_a_page_that_an_installed_package_lacks() -> None:
    naming = {path.relative_to(ROOT).as_posix() for path, text in _texts_for_users() if "docs/" in text}
    assert naming <= {"src/hydrant/extensions/docs/command.py"}, "which finds the pages of the package"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_executable_and_stop_at_errors(script: Path) -> None:
    assert script.stat().st_mode & 0o111
    text = script.read_text()
    if not text.startswith("#!/usr/bin/env python3\n"):
        assert text.startswith("#!/usr/bin/env bash\n")
        assert "set -euo pipefail" in text
        subprocess.run(["bash", "-n", str(script)], check=True)


def test_few_hooks_and_all_local() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    hooks = [hook for repo in config["repos"] for hook in repo["hooks"]]
    assert len(hooks) <= 6
    assert {repo["repo"] for repo in config["repos"]} == {"local"}
    checks = (ROOT / "scripts" / "check").read_text()
    for hook in hooks:
        tool = hook["entry"].removeprefix("uv run --group dev ").split()[0]
        assert tool in checks


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", page.read_text()):
        if "://" in target:
            continue
        file = page.parent / target if target else page
        assert file.exists(), target
        if anchor:
            assert anchor in anchors(file), f"{target}#{anchor}"


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and MkDocs name them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_files_that_a_page_names_exist(page: Path) -> None:
    for path in re.findall(r"(?<![\w/.])(?:tests|scripts|benchmarks|docs)/[\w./-]*\w", page.read_text()):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("page", DOCS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_page_is_in_the_index_and_in_the_site_and_is_short(page: Path) -> None:
    assert len(page.read_text().split()) <= 1500 or page.name == "json.md", "which is generated"
    uri = page.relative_to(ROOT / "docs").as_posix()
    assert f" {uri}\n" in (ROOT / "mkdocs.yml").read_text()
    index = ROOT / "docs" / "reference" / "api" if "api" in page.parts else ROOT / "docs"
    if page.name != "README.md":
        assert f"]({page.relative_to(index).as_posix()})" in (index / "README.md").read_text()


@pytest.mark.parametrize("package", ["data", "models", "tasks", "optimizers", "schedules"])
def test_the_api_pages_have_every_public_name(package: str) -> None:
    page = (ROOT / "docs" / "reference" / "api" / f"{package}.md").read_text()
    listed = {name.rpartition(".")[2] for name in re.findall(r"^::: (\S+)$", page, flags=re.MULTILINE)}
    no_parts = {"check_timm_name", "repeated_blocks", "GroupSchedule", "Noise", "check_one", "progress", "P"}
    assert listed >= public_names(importlib.import_module(f"hydrant.{package}")) - no_parts


def test_the_tree_for_contributors_is_the_tree() -> None:
    block = re.search(r"```text\n(train\.py.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), flags=re.DOTALL)
    assert block is not None
    for line in block[1].splitlines():
        parent = "src/hydrant" if line.startswith(" ") else "."
        for name in re.split(r" {2,}", line.strip())[0].split():
            assert (ROOT / parent / name).exists(), name


def test_ci_runs_the_test_command_of_the_readme() -> None:
    """Another command could hide failures, such as those that depend on the order of tests."""
    block = re.search(r"## Tests\n.*?```bash\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert block is not None
    (command,) = [line for line in block[1].splitlines() if "pytest" in line]
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert f"UV_NO_SYNC=1 {command} || status=$?" in lines, "with the environment of constraints.txt"
    assert "[ $status = 0 ]" in lines, "a failure must end the script"


def test_slow_tests_are_left_out_unless_asked_for() -> None:
    options = PROJECT["tool"]["pytest"]["ini_options"]["addopts"]
    assert options[options.index("-m") + 1] == "not slow"


@pytest.mark.parametrize("option", conf_files("hydra/launcher/*.yaml").values(), ids=lambda p: p.stem)
def test_a_launcher_is_tested_and_stands_in_the_tables(option: Path) -> None:
    tested = {word for words in LAUNCHERS.values() for word in words} | {"hydra/launcher=stacked"}
    assert f"hydra/launcher={option.stem}" in tested, "add it to LAUNCHERS in tests/support/sweeps.py"
    for page in ("docs/guides/launchers.md", "docs/reference/hydra.md"):
        rows = [line for line in (ROOT / page).read_text().splitlines() if line.startswith("| `")]
        assert any(f"`{option.stem}`" in row or f"={option.stem}`" in row for row in rows), page


def test_the_name_of_a_run_means_the_same_command_on_all_pages() -> None:
    """A reader who follows two pages in one folder is not refused, because a folder holds one run."""
    commands: dict[tuple[str, str], dict[Path, str]] = {}
    for page in (ROOT / "README.md", *DOCS):
        text = page.read_text()
        own = re.search(r"^mkdir (\S+) && cd", text, flags=re.MULTILINE)
        for block in re.findall(r"^```bash\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                is_single_run = re.search(r"\b(train\.py|hydrant train) (?!.*(--multirun|-m ))", line)
                if is_single_run and (name := re.search(r" name=(\S+)", line)):
                    commands.setdefault((own[1] if own else "", name[1]), {}).setdefault(page, line)
    clashes = {name: on for name, on in commands.items() if len({*on.values()}) > 1}
    assert not clashes
