"""A config file that cannot be used is refused in one line that names it."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigSource
from marks import configs, slow

from hydrant import cli
from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.config.file_source import LimitedFileSource
from hydrant.config.groups import option_fields
from hydrant.errors import ConfigError
from hydrant.files.read_file import MAX_DEPTH, read_json, read_yaml

Refused = Callable[..., str]


def repeated(times: int) -> str:
    """Return lines of which each repeats the one before twice."""
    return "x0: &x0 [1]\n" + "".join(f"x{n + 1}: &x{n + 1} [*x{n}, *x{n}]\n" for n in range(times))


FILES: dict[str | bytes, str] = {
    b"\xff\xfe\x00binary": r"line 1 is no text in UTF-8 \(byte 0xff\); save the file in UTF-8",
    b"# @package a b c\nseed: 1\n": "Too many components",
    "\x01": "unacceptable character",
    "x: \x1b[2J": "unacceptable character",
    "x: [1": "line 3: ",
    "x: 1\nx: 2": "line 3: found duplicate key x",
    "- seed: 1": "is no mapping of keys to values",
    "hello": "is no mapping of keys to values",
    "x: " + "[" * 3000: "line 2: nested more than 50 levels deep",
    "\n".join(" " * n + "x:" for n in range(200)): "line 51: nested more than 50 levels deep",
    "x: &x [*x]": "line 2: more than 20,000 values, with those that aliases repeat",
    repeated(20): "line 13: more than 20,000 values, with those that aliases repeat",
    "x: !!python/object:os.system ls": "line 2: could not determine a constructor",
    "x: !!int x": "",
    "x: 1" + ":59" * 100: "line 2: a number has 301 characters",
    "duration: 1:30": "line 2: YAML reads 1:30 as 90; write 90, or '1:30' with quotes for a text",
    "eval_every: 1:00:30": "line 2: YAML reads 1:00:30 as 3630; write 3630, or '1:00:30'",
    "optimizer: {lr: 1:30.5}": "line 2: YAML reads 1:30.5 as 90.5; write 90.5, or",
    "seed: 010": "line 2: YAML reads 010 as 8; write 8, or '010'",
    "seed: 0x1F": "line 2: YAML reads 0x1F as 31; ",
    "data: {columns: [yes, no]}": "line 2: YAML reads yes as true; write true, or 'yes' with quotes for a text",
    "global_batch_size: {0: 64, 1:30: 128}": "line 2: YAML reads 1:30 as 90; ",
    "x: !!binary aGFsbG8=": "a value is of the type bytes",
    "x: !!timestamp 2020-01-01": "a value is of the type date",
    "defaults: theirs": "defaults: needs a list, not 'theirs'",
    "defaults: [{override /averaging: none}, {override /averaging: ema}]": "defaults: override /averaging chooses",
    "defaults: [{override /tracker: [wandb]}, {override /tracker: local}]": "defaults: override /tracker chooses ",
    "defaults: [1]": "defaults: needs entries such as 'model: mlp', not 1",
    "defaults: [{optimizer: {lr: 1}}]": "defaults: needs entries such as 'model: mlp', not {optimizer: {lr: 1}}",
}


@pytest.fixture
def theirs(workdir: Path) -> Path:
    """The file of `experiment=theirs`, in a folder that exists."""
    file = workdir / "conf" / "experiment" / "theirs.yaml"
    file.parent.mkdir(parents=True)
    return file


@pytest.fixture
def refused(theirs: Path, capfd: pytest.CaptureFixture[str]) -> Refused:
    """Run a command that must be refused in one line about `experiment=theirs`; return the message."""

    def run(*words: str) -> str:
        chosen = any(word.startswith("experiment=") for word in words)
        assert cli.main([*words, *([] if chosen else ["experiment=theirs"])]) == 2
        [line] = capfd.readouterr().err.splitlines()
        assert len(line) < 400
        return line.removeprefix("error: ")

    return run


@pytest.mark.parametrize(("text", "expected"), FILES.items(), ids=range(len(FILES)))
def test_a_file_that_is_no_config_is_named(
    text: str | bytes, expected: str, theirs: Path, refused: Refused
) -> None:
    theirs.write_bytes(text if isinstance(text, bytes) else f"# @package _global_\n{text}\n".encode())
    commands = (["preview"], ["train"], ["train", "--multirun", "seed=0,1"])
    for words in commands[: 3 if text in ("x: [1", "hello") else 1]:  # the same file source reads for all
        assert re.match(f"{theirs}: {expected}", refused(*words))


UNPLACED = [
    "seed: 3\n",
    "",
    "# which?\n\n# @package _global_\nseed: 3\n",
    "# @package: _global_\nseed: 3\n",
    "defaults:\n  - override /optimizer: sgd\nseed: 3\n",
]


@pytest.mark.parametrize("text", UNPLACED)
def test_an_experiment_sets_the_keys_of_a_run_without_a_line_that_says_so(text: str, theirs: Path) -> None:
    theirs.write_text(text)
    theirs.with_name("other.yaml").write_bytes(b"duration: 3 # \xfc\n")  # is not chosen
    expected = ["seed=3"] * ("seed" in text) + ["optimizer=sgd"] * ("sgd" in text)
    assert compose(["experiment=theirs"]) == compose(expected)


def test_a_hook_lies_at_its_name_without_a_line_that_says_so(workdir: Path) -> None:
    file = workdir / "conf" / "hook" / "mine.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("_target_: hydrant.parts.Hook\n")
    assert compose(["hook=mine"]).hooks == {"mine": {"_target_": "hydrant.parts.Hook"}}


IN_DEFAULTS = ", or in the defaults list of a config file: override /"
CHOSEN_AS_KEYS: dict[str, str] = {
    "hook: []": f"hook: is a config group; choose an option of it: hook=[]{IN_DEFAULTS}hook: []",
    "hook: csv_log": f"hook: is a config group; choose an option of it: hook=csv_log{IN_DEFAULTS}hook: csv_log",
    **dict.fromkeys(
        ("hooks: [a, b]", "optimizers: [a]", "model: [mlp]"),
        "experiment/theirs.yaml gives a list to a key that holds a mapping; "
        "choose options of a group in its defaults list: override /hook: [...]",
    ),
    "optimizer: sgd": "optimizer: 'sgd' is not a config with a _target_; "
    f"choose an option: optimizer=sgd{IN_DEFAULTS}optimizer: sgd",
}


@pytest.mark.parametrize(("text", "expected"), CHOSEN_AS_KEYS.items())
def test_an_option_that_is_written_as_a_key_is_answered_with_the_defaults_list(
    text: str, expected: str, theirs: Path, refused: Refused
) -> None:
    theirs.write_text(f"# @package _global_\n{text}\n")
    assert refused("preview") == expected


@pytest.mark.parametrize("name", ["1.5", "true", "null", *slow("1", "1e3", "1_0", "off", "nan", "inf")])
def test_an_option_may_have_the_name_of_a_number(name: str, theirs: Path, refused: Refused) -> None:
    theirs.with_name(f"{name}.yaml").write_text("# @package _global_\nseed: 7\n")
    assert compose([f"experiment='{name}'"]).seed == 7
    theirs.write_text(f"# @package _global_\ndefaults:\n  - override /optimizer: {name}\n")
    theirs.parents[1].joinpath("optimizer").mkdir()
    theirs.parents[1].joinpath("optimizer", f"{name}.yaml").write_text("defaults: [adamw]\nlr: 0.5\n")
    if name not in ("null", "nan", "inf"):  # null chooses nothing; the others are text in YAML
        message = refused("preview")
        assert "defaults: needs entries such as" in message or "or 'off' with quotes" in message
    theirs.write_text(f"# @package _global_\ndefaults:\n  - override /optimizer: '{name}'\n")
    assert compose(["experiment=theirs"]).optimizer.lr == 0.5


def test_a_misspelt_place_is_named(theirs: Path, refused: Refused) -> None:
    theirs.write_text("# @package _global\nseed: 3\n")
    assert refused("preview").startswith("_global: no such key")


GRIDS = {
    "# @package _global_\nhydra:\n  sweeper:\n    params:\n      seed: 0,1\nduration: 3\n": "sets duration, which ...",
    "# @package _global_\ndefaults:\n  - override /optimizer: sgd\nhydra: {}\n": "sets optimizer, which does not ...",
}


@pytest.mark.parametrize(("text", "expected"), GRIDS.items(), ids=["key", "option"])
def test_what_a_grid_cannot_give_to_its_jobs_is_refused(
    text: str, expected: str, workdir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = workdir / "conf" / "sweep" / "mine.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    assert cli.main(["train", "--multirun", "sweep=mine"]) == 2
    error = capfd.readouterr().err.splitlines()[-1]
    assert error.startswith(f"error: sweep: {file} {expected.removesuffix('...')}")
    assert not (workdir / "multirun").exists()


def test_a_byte_order_mark_changes_nothing(theirs: Path, workdir: Path) -> None:
    (workdir / "conf" / "model").mkdir()
    (workdir / "conf" / "model" / "small.yaml").write_text("\ufeffdefaults: [mlp]\nhidden: [3]\n")
    theirs.write_text("\ufeff\ufeff# @package _global_\ndefaults:\n  - override /model: small\nseed: 5\n")
    config = compose(["experiment=theirs"])
    assert (config.seed, config.model.hidden) == (5, [3])
    assert "dropout" in option_fields("model", "small")
    file = workdir / "config.yaml"
    file.write_text("\ufeffseed: 5\n")
    assert read_yaml(file, dict[str, int]) == {"seed": 5}
    file.write_text('\ufeff{"seed": 5}\n')
    assert read_json(file, dict[str, int]) == {"seed": 5}


def test_a_file_that_includes_itself_is_named(theirs: Path, refused: Refused) -> None:
    theirs.write_text("defaults: [theirs]\n")
    for words in (["train"], ["train", "--multirun", "seed=0,1"], ["preview"]):
        assert refused(*words).startswith("a config file includes itself, or ")
    theirs.write_text("defaults: [other]\n")
    theirs.with_name("other.yaml").write_text("defaults: [theirs]\n")
    assert refused("train").startswith("a config file includes itself, or ")


def test_values_may_be_nested(workdir: Path) -> None:
    file = workdir / "conf" / "experiment" / "mine.yaml"
    file.parent.mkdir(parents=True)
    depth = MAX_DEPTH - 1
    file.write_text(f"# @package _global_\nmodel: {'{a: ' * (depth - 1)}1{'}' * (depth - 1)}\n")
    node = compose(["experiment=mine"]).model
    for _ in range(depth - 1):
        node = node.a
    assert node == 1


@pytest.mark.parametrize("file", configs())
def test_configs_are_read_as_hydra_reads_them(file: Path) -> None:
    ours, hydras = (source(file.parent).load_config(file.stem) for source in (limited, hydras_own))
    assert (ours.provider, ours.header) == (hydras.provider, hydras.header)
    assert ours.config == hydras.config
    assert list(ours.config) == list(hydras.config)


def limited(folder: Path) -> ConfigSource:
    return LimitedFileSource("main", f"{LimitedFileSource.scheme()}://{folder}")


def hydras_own(folder: Path) -> ConfigSource:
    kinds = {kind.scheme(): kind for kind in Plugins.instance().discover(ConfigSource)}
    return kinds["file"]("main", f"file://{folder}")


@pytest.mark.parametrize("kind", [None, *ObjectType])
def test_folders_are_listed_as_hydra_lists_them(kind: ObjectType | None, tmp_path: Path) -> None:
    for name in ("group/a.yaml", "__pycache__/x.yaml", "b.yaml", "d.txt", "__init__.py", "e.yaml/f.yaml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x: 1\n")
    ours, hydras = limited(tmp_path), hydras_own(tmp_path)
    for group in ("", "group"):
        assert ours.list(group, kind) == hydras.list(group, kind)
    for name in ("", "group", "group/a", "group/a.yaml", "b", "c", "nowhere", "x" * 300, "e", "e.yaml"):
        assert (ours.is_group(name), ours.is_config(name)) == (hydras.is_group(name), hydras.is_config(name))
    assert ours.available()
    assert not limited(tmp_path / "nowhere").available()


@pytest.mark.parametrize(
    "name", ["1e5", "1_000", "2026-11-25", "007", "0x1F", "on1", "5", *slow("1.50", "1E5", "inf")]
)
def test_a_name_is_the_text_that_was_typed(name: str, theirs: Path) -> None:
    """On the command line and in a file."""
    assert check(compose([f"name={name}"]))["name"] == name
    theirs.write_text(f"# @package _global_\nname: {name}\nnotes: {name}\n")
    config = check(compose(["experiment=theirs"]))
    assert (config["name"], config["notes"]) == (name, name)


def test_values_in_a_file_are_those_of_the_command_line_or_are_refused(theirs: Path) -> None:
    texts = ["1:30", "1:00", "010", "0x1F", "0b1", "on", "no", "Yes", "OFF", "1_000", "1e3", "2026-11-25", "'010'",
             "-5", "true", "null", "0", ".5", "1."]  # fmt: skip
    typed = compose([f"+data.note{n}={text}" for n, text in enumerate(texts)]).data
    accepted = "# @package _global_\ndata:\n"
    for n, text in enumerate(texts):
        line = f"  note{n}: {text}\n"
        if isinstance(typed[f"note{n}"], str) and text not in ("2026-11-25", "'010'"):
            theirs.write_text(f"# @package _global_\ndata:\n{line}")
            with pytest.raises(ConfigError, match="YAML reads"):
                compose(["experiment=theirs"])
        else:
            accepted += line
    theirs.write_text(accepted)
    read = compose(["experiment=theirs"]).data
    assert accepted.count("note") > len(texts) / 3
    assert all(read[key] == typed[key] for key in read if key.startswith("note"))
