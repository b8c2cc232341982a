"""No project makes itself trusted, and the trust in one reaches nothing else: neither other folders nor other code."""

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hydrant import cli
from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.errors import ConfigError
from hydrant.safety import trust
from hydrant.safety.trust import check_consent

CODE = "import os\nimport torch\nclass Net(torch.nn.Linear):\n    '''A layer.'''\n"
NET = "_target_: {}\nin_features: 64\nout_features: 10\n"


@pytest.fixture(autouse=True)
def config_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with the list of trusted projects."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config"


@pytest.fixture(autouse=True)
def _forgotten_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def forget() -> None:
        for name in [name for name in sys.modules if name.partition(".")[0] in ("mine", "theirs", "src")]:
            del sys.modules[name]

    monkeypatch.setattr(sys, "path", sys.path.copy())
    forget()  # what other tests have imported
    yield
    forget()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with the package `mine`, which is the working folder and is not trusted."""
    root = tmp_path / "project"
    write(root / "mine" / "__init__.py", "")
    write(root / "mine" / "model.py", CODE)
    enter(root, monkeypatch)
    return root


def write(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def enter(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    sys.path.insert(0, str(root))


def use(target: str = "mine.model.Net", *words: str) -> None:
    """Compose and check a config whose model is this target of a file in ./conf."""
    write(Path("conf/model/own.yaml"), NET.format(target))
    check(compose(["model=own", *words], from_user=()))


def refusal(*arguments: str) -> str:
    with pytest.raises(ConfigError) as error:
        use(*arguments)
    return str(error.value)


def test_packages_of_a_trusted_project_need_no_other_consent(project: Path) -> None:
    assert "trust it once: hydrant trust" in refusal()
    assert "mine" not in sys.modules
    assert cli.main(["trust"]) == 0
    use()
    write(project / "conf/experiment/own.yaml", "# @package _global_\nallow_targets: [mine]\n")
    use("mine.model.Net", "experiment=own")
    assert check(compose(["model=own"]))["allow_targets"] == ["mine"]
    assert check(compose([]))["allow_targets"] == []
    assert cli.main(["trust", "--remove", str(project)]) == 0
    assert "not allowed" in refusal()


@pytest.mark.parametrize(
    "target", ["mine.model.os.system", "mine.model.torch.load", "subprocess.run", "theirs.Net"]
)
def test_trust_reaches_no_other_code(target: str, project: Path) -> None:
    """Neither what a package has imported, nor packages that came after the consent."""
    trust.trust(project, trust.packages_in(project))
    write(project / "theirs.py", CODE)
    message = refusal(target)
    assert "is not allowed" in message or "is not defined in mine, but imported there" in message
    write(project / "conf/experiment/own.yaml", "# @package _global_\nallow_targets: [mine, theirs]\n")
    assert "requests to run code of 'theirs'" in refusal("mine.model.Net", "experiment=own")


def test_the_hydra_node_may_name_own_code_only(project: Path) -> None:
    trust.trust(project, ["mine"])
    sweeper = "hydra: {sweeper: {_target_: mine.model.os.system, command: touch called}}"
    write(project / "conf/experiment/own.yaml", f"# @package _global_\nallow_targets: [mine]\n{sweeper}\n")
    assert "is not defined in mine" in refusal("mine.model.Net", "experiment=own")
    assert not (project / "called").exists()


def test_trust_stays_at_its_path(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy, a project that has moved, its subfolder, and a link to another project are not trusted."""
    trust.trust(project, ["mine"])
    shutil.copytree(project, tmp_path / "clone")
    for other in (tmp_path / "clone", project / "mine", tmp_path):
        enter(other, monkeypatch)
        assert "is not allowed" in refusal()
    project.rename(tmp_path / "moved")
    enter(tmp_path / "moved", monkeypatch)
    assert "is not allowed" in refusal()
    project.symlink_to(tmp_path / "clone")
    enter(project, monkeypatch)
    assert "is not allowed" in refusal()


def hidden_by_an_installed_package(project: Path, elsewhere: Path) -> None:
    write(elsewhere / "mine" / "__init__.py", "")
    write(elsewhere / "mine" / "model.py", CODE)
    sys.path.insert(0, str(elsewhere))


def in_an_environment_of_the_project(project: Path, elsewhere: Path) -> None:
    hidden_by_an_installed_package(project, project / ".venv" / "site-packages")


def replaced_by_a_link(project: Path, elsewhere: Path) -> None:
    (project / "mine").rename(elsewhere)
    (project / "mine").symlink_to(elsewhere)


def in_a_linked_src(project: Path, elsewhere: Path) -> None:
    (elsewhere / "src").mkdir(parents=True)
    (project / "mine").rename(elsewhere / "src" / "mine")
    (project / "src").symlink_to(elsewhere / "src")
    sys.path.insert(0, str(project / "src"))


def without_init(project: Path, elsewhere: Path) -> None:
    """Such a package is whatever folders of this name are found, also those elsewhere."""
    (project / "mine" / "__init__.py").unlink()


def loaded_from_elsewhere(project: Path, elsewhere: Path) -> None:
    hidden_by_an_installed_package(project, elsewhere)
    __import__("mine.model")
    sys.path.remove(str(elsewhere))


def writable_by_anybody(project: Path, elsewhere: Path) -> None:
    (project / "mine" / "__init__.py").chmod(0o666)


def in_a_folder_that_anybody_may_write(project: Path, elsewhere: Path) -> None:
    project.chmod(0o777)


ATTACKS: list[Callable[[Path, Path], None]] = [
    hidden_by_an_installed_package, in_an_environment_of_the_project, replaced_by_a_link, in_a_linked_src,
    without_init, loaded_from_elsewhere, writable_by_anybody, in_a_folder_that_anybody_may_write,
]  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_a_trusted_name_means_the_files_of_the_project(
    attack: Callable[[Path, Path], None], project: Path, tmp_path: Path
) -> None:
    trust.trust(project, ["mine"])
    attack(project, tmp_path / "elsewhere")
    message = refusal()
    assert "is a package of the trusted project" in message or "may be written by anybody" in message
    if attack is not loaded_from_elsewhere:
        assert "mine" not in sys.modules


def test_another_users_files_are_not_trusted(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trust.trust(project, ["mine"])
    (project / "mine" / "__init__.py").chmod(0o644)
    user = project.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    if user == 0:  # everybody trusts files of root, so pretend that they are another's
        for path in (project, project / "mine", project / "mine" / "__init__.py"):
            os.chown(path, 4321, -1)
    assert "belongs to another user" in refusal()


@pytest.mark.parametrize("mode", [0o666, 0o602])
def test_a_list_that_anybody_may_write_is_refused(mode: int, project: Path, config_home: Path) -> None:
    trust.trust(project, ["mine"])
    file = config_home / "hydrant" / "trusted.json"
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(mode)
    assert "may be written by anybody; run: chmod o-w" in refusal()


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"projects": {"/": 1}}', '{"projects": [', "\x00"])
def test_a_damaged_list_is_refused(text: str, project: Path, config_home: Path) -> None:
    write(config_home / "hydrant" / "trusted.json", text)
    assert "trusted.json is damaged" in refusal()


@pytest.mark.parametrize("home", ["", ".", "conf", "../project"])
def test_a_project_cannot_bring_the_list(home: str, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", home)
    monkeypatch.setenv("HOME", home)
    content = json.dumps({"projects": {str(project): ["mine"]}})
    for folder in (project, project / "conf", project / ".config"):
        write(folder / "hydrant" / "trusted.json", content)
    assert "is not allowed" in refusal()


def test_a_refusal_elsewhere_names_the_trusted_project(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trust.trust(project, ["mine"])
    enter(tmp_path, monkeypatch)
    with pytest.raises(ConfigError) as caught:
        check_consent(["mine"], ())
    assert str(caught.value).endswith(f"or run it in the folder of your trusted project: {project}")


def test_a_path_that_is_no_text_is_not_written_into_the_list(tmp_path: Path, config_home: Path) -> None:
    """The list would be refused as damaged, by each command in each folder."""
    root = tmp_path / "caf\udce9"
    root.mkdir()
    with pytest.raises(ConfigError, match="not UTF-8; rename the folder"):
        trust.trust(root, ["mine"])
    assert not config_home.exists()
