"""What `hydrant explain` prints of options, groups and keys."""

from collections.abc import Callable
from pathlib import Path

import pytest

from hydrant import cli
from hydrant.config.groups import conf_dir, group_options

Explain = Callable[..., str]


@pytest.fixture
def explain(capsys: pytest.CaptureFixture[str]) -> Explain:
    def run(*words: str, status: int = 0) -> str:
        assert cli.main(["explain", *words]) == status
        output = capsys.readouterr()
        return output.err if status else output.out

    return run


def test_every_group_and_option_is_explained(explain: Explain) -> None:
    for group, options in group_options().items():
        lines = explain(group).splitlines()
        assert [line.partition(" ")[0] for line in lines[: len(options)]] == [f"{group}={n}" for n in options]
        assert all(len(line.split()) > 2 for line in lines[: len(options)]), "each option says what it is"


def test_an_option_is_printed_with_its_path_and_what_it_includes(explain: Explain) -> None:
    text = explain("scheduler=wsd")
    for name in ("wsd", "_frame"):
        file = conf_dir() / "scheduler" / f"{name}.yaml"
        assert f"# {file}\n" in text
        assert file.read_text().rstrip().replace("python train.py", "hydrant train") in text
    assert explain() == explain("train")
    assert f"# {conf_dir() / 'train.yaml'}\n" in explain()


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("duration", "duration: 60ep  # how long to train"),
        ("best.mode", "best.mode: auto  # max or min; auto: what is better for this metric"),
        ("optimizer.momentum", "optimizer=sgd         optimizer.momentum: 0.9"),
        (
            "hooks.freeze.stages",
            "hook=freeze hooks.freeze.stages: ??? # each has match, a regular expression",
        ),
        ("data.augment.max_shift", "data=digits    data.augment.max_shift: 0  # pixels"),
        ("max_grad_norm", "max_grad_norm: null  # clip gradients to this 2-norm (a number above 0 or null)"),
        ("scheduler.warmup", "scheduler=wsd scheduler.warmup: 0 # duration of the linear rise"),
        ("data.val_ratio", "data=mnist data.val_ratio: 0.0 # of each class of the training images"),
        (
            "data.val_ratio",
            "data=dataset data.val_ratio: 0.0 # of train, to validate on; 0: none, if folds are cut from",
        ),
        ("optimizer.lr", "optimizer=adagrad optimizer.lr: 0.01 # learning rate (a number)"),
        ("momentum", "optimizer=sgd         optimizer.momentum: 0.9"),
    ],
)
def test_a_key_is_shown_with_its_defaults(key: str, line: str, explain: Explain) -> None:
    lines = [" ".join(shown.split()) for shown in explain(key).splitlines()]
    assert any(shown.startswith(" ".join(line.split())) for shown in lines)


@pytest.mark.parametrize(
    ("word", "near"),
    [("optimizer=adm", "'adam'"), ("optimizer.momentun", "'optimizer.momentum'"), ("durationn", "'duration'"),
     ("hooks.freez", "unknown"), ("scheduller", "'scheduler'"), ("wandb_sweep.x", "unknown"),
     ("max_epochs", "unknown group or key 'max_epochs'; write duration=<value>ep")],
)  # fmt: skip
def test_unknown_words_are_answered_with_near_ones(word: str, near: str, explain: Explain) -> None:
    assert near in explain(word, status=2)


def test_an_option_of_one_s_own_comes_first(
    explain: Explain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "conf" / "optimizer").mkdir(parents=True)
    file = tmp_path / "conf" / "optimizer" / "adamw.yaml"
    file.write_text("# Mine.\nlr: 7 # large\n")
    monkeypatch.chdir(tmp_path)
    assert explain("optimizer=adamw") == f"# {file}\n{file.read_text()}"
    assert "Mine." in explain("optimizer")
    file.write_text("lr: [")
    assert "is no YAML" in explain("optimizer=adamw", status=2)


@pytest.mark.parametrize(
    "content",
    ["defaults: [/optimizer/adamw, mlp, _self_]", "defaults: [_missing]", "[1, 2]", "a: [", "x: !unknown 1"],
)
def test_a_group_is_listed_whatever_its_files_hold(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, explain: Explain
) -> None:
    (tmp_path / "conf" / "model").mkdir(parents=True)
    (tmp_path / "conf" / "model" / "mine.yaml").write_text(f"# A model of my own.\n{content}\n")
    monkeypatch.setenv("HYDRANT_CONF", str(tmp_path / "conf"))
    assert "A model of my own." in explain("model")


@pytest.mark.parametrize(
    ("program", "command"),
    [("train.py", "python train.py"), ("/bin/hydrant", "hydrant train"),
     ("/hydrant/__main__.py", "hydrant train"), ("mine.py", "python mine.py")],
)  # fmt: skip
def test_the_help_of_train_names_the_command_that_was_called(
    program: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", [program, "train", "--help"])
    assert f"  {command} debug=smoke " in cli.help_of("train")
