"""Command lines and config files to attack with, drawn by Hypothesis from the config's own keys, options and values."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from repository import conf_files

from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.config.flat import flatten
from hydrant.config.groups import conf_dir, group_options

TINY = [
    "tracker=local", "data=synthetic", "data.input_shape=[1,4,4]", "data.num_classes=3", "data.num_samples=16",
    "data.num_val_samples=4", "model.hidden=[4]", "global_batch_size=8", "duration=1", "log_every=1",
    "eval_every=null", "save_every=null",
]  # fmt: skip

SLOW_PARTS = (
    "timm", "max_autotune", "fp8", "mnist", "cifar", "image_folder", "reduce_overhead", "vit", "resnet",
    "optuna", "ray",
)  # fmt: skip
"""Options that take seconds to import or to compile, or need files; other tests cover them."""


@dataclass(frozen=True)
class ConfigCase:
    """A command line, and files in the folder where it is given."""

    words: Sequence[str]
    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])


class _Enough(Exception):
    """All cases are drawn."""


def draw(cases: st.SearchStrategy[ConfigCase], count: int) -> list[ConfigCase]:
    """Return `count` different cases, always the same ones."""
    drawn: dict[str, ConfigCase] = {}

    @settings(
        max_examples=10 * count, derandomize=True, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(cases)
    def collect(case: ConfigCase) -> None:
        if len(drawn) == count:
            raise _Enough
        drawn[repr(case)] = case

    with contextlib.suppress(_Enough):
        collect()
    return list(drawn.values())


GROUPS = {
    name: [option for option in options if option not in SLOW_PARTS and not option.startswith(SLOW_PARTS)]
    for name, options in group_options().items()
    if not name.startswith("hydra")
}
TRAIN_KEYS = sorted(set(flatten(yaml.safe_load((conf_dir() / "train.yaml").read_text()))) - {"defaults"})
KEYS = TRAIN_KEYS + sorted(
    f"{path.parent.name}.{key}"
    for path in conf_files("*/[!_]*.yaml").values()
    if path.parent.name != "wandb_sweep"
    for key in flatten(yaml.safe_load(path.read_text()) or {})
    if not key.startswith(("_", "defaults"))
)
PRESENT = sorted(flatten(check(compose(TINY))))
HYDRA_KEYS = [
    f"hydra.{key}"
    for key in (
        "mode", "searchpath", "run.dir", "run", "sweep", "sweep.dir", "sweep.subdir", "callbacks", "callbacks.hydrant",
        "callbacks.x._target_", "job", "job.name", "job.chdir", "job.id", "job.num", "job.config_name", "job.env_set",
        "job.env_set.A", "job.env_copy", "job.config.override_dirname", "output_subdir", "overrides", "overrides.task",
        "runtime", "runtime.choices", "runtime.output_dir", "verbose", "help", "help.template", "hydra_help",
        "job_logging", "job_logging.version", "job_logging.handlers", "job_logging.root.level", "hydra_logging",
        "launcher", "launcher._target_", "launcher.num_jobs",
        "launcher.jobs_per_gpu", "sweeper", "sweeper.params", "sweeper.max_batch_size",
    )
] + ["hydra", "hydra/launcher", "hydra/sweeper", "hydra/job_logging", "hydra/output", "hydra/help"]  # fmt: skip

ODD = r"""
null true false nan -.inf inf -1 0 1 0.0 1e400 -1e-400 1e38 10**9 0x1f 1_000 '' [] {} [null] [[1]] {a:1} ??? auto
{_target_:os.system} 5% 150% -3ep 0ep 3sa 1e3ep nanep ${seed} ${nowhere} ${oc.env:HOME} ${oc.env:NOWHERE}
\${seed} ${ } ] [1 {a: ' " ${hydra:run.dir} ${oc.create:{a:1}} ${oc.decode:'['} ${job_slug:1} ${run_folder:1}
a,b 0,1 range(1,3) range(3,1) range(0,1,0) range(0.0,1.0,1e-9) range(0,1000000) range(0,1e12) choice(a,b)
shuffle(range(0,1000000000)) interval(0,1) glob(*) sort(1,2) cast(int,x) int(3) float(a) !!python/object:x
a=b = ../.. /dev/null ~ @ &a *a # a#b : - \ % é 日本 torch.optim.SGD hydrant sgd adamw cosine MULTIRUN
"""
NEAR = "0 1 2 3 8 0.1 0.5 1.5 -1 1e-3 null true false 1ep 50% [1] [4,4] [0.9,0.99] val/loss min max"
WORDS = [
    *ODD.split(), "' '", "a b", "a\tb", "a\nb", "", "x" * 3000, "é" * 200, "9" * 40, "9" * 5000, "\u202e", "\x1b[2J",
    "\U0001f600", "\udc80", "[" * 60 + "]" * 60, "[" * 3000, "{a:" * 60 + "1" + "}" * 60, "${a" * 40,
]  # fmt: skip

_values = (
    st.sampled_from(WORDS)
    | st.integers(-(10**12), 10**12).map(str)
    | st.floats().map(repr)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
    | st.lists(st.sampled_from(WORDS[:20]), max_size=3).map(lambda items: f"[{','.join(items)}]")
)
_keys = (
    st.sampled_from(KEYS)
    | st.sampled_from(HYDRA_KEYS)
    | st.sampled_from(KEYS).map(lambda key: f"{key}.x")
    | st.sampled_from(KEYS).map(lambda key: key[:-1])
    | st.sampled_from([*GROUPS, "scheduler@schedules.weight_decay", "optimizers.a", "x", "a." * 60 + "b"])
    | st.text(max_size=6)
)
_choices = st.sampled_from(sorted(GROUPS)).flatmap(
    lambda group: st.sampled_from(GROUPS[group]).map(lambda option: f"{group}={option}")
)
_edits = st.builds("{}{}={}".format, st.sampled_from(["", "", "", "", "+", "++", "~"]), _keys, _values)
_near = st.builds("{}={}".format, st.sampled_from(PRESENT), st.sampled_from(NEAR.split()))
_flags = st.sampled_from(
    ["--multirun", "-m", "--cfg", "--resolve", "--package", "--info", "--config-name=x", "--config-dir=x", "--x", "-"]
)  # fmt: skip
_removals = st.builds("~{}".format, _keys)


def _mixed(*weighted: tuple[int, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    """Draw from each strategy as often as its weight says; `|` would draw equally from their parts."""
    kinds = [kind for weight, kind in weighted for _ in range(weight)]
    return st.integers(0, len(kinds) - 1).flatmap(lambda number: kinds[number])


_words = _mixed((8, _edits), (4, _near), (3, _choices), (1, _removals), (1, _values)).filter(
    lambda word: "\0" not in word and not word.startswith("-")
)
_command = st.sampled_from([["preview"], ["train"], ["train"], ["train", "--multirun"]])


def _line(command: Sequence[str], drawn: Sequence[str], *more: str) -> list[str]:
    return [*command, *TINY, *more, *drawn]


COMMAND_LINES = st.builds(
    ConfigCase, st.builds(_line, _command, st.lists(_mixed((9, _words), (1, _flags)), min_size=1, max_size=2))
)
"""Command lines of one or two odd words after those of a small run."""

TRAINED = st.builds(
    ConfigCase, st.builds(_line, st.just(["train"]), st.lists(_near | _choices, min_size=1, max_size=2))
)
"""Command lines of a small run with other options and values, most of which can train."""

_scalars: st.SearchStrategy[Any] = (
    st.sampled_from([yaml.safe_load(word) for word in NEAR.split()])
    | st.sampled_from(WORDS) | st.integers() | st.floats() | st.text(max_size=8)
)  # fmt: skip
_names = st.sampled_from([*(key.rpartition(".")[2] for key in KEYS), "_target_", "a"])


def _inner(nodes: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(nodes, max_size=3) | st.dictionaries(
        _names | st.sampled_from([*WORDS, None, True, 0, 1.5]), nodes, max_size=3
    )


_nodes = st.recursive(_scalars, _inner, max_leaves=6)
_defaults = st.lists(
    st.sampled_from(["_self_", "theirs", "/model", "/model/mlp", "adamw", "", "@", "nowhere", "../train", "a@b:c"])
    | st.dictionaries(
        st.sampled_from([*GROUPS, "override /optimizer", "optional x", "/model@a.b", "override hydra/launcher", ""]),
        st.sampled_from(["theirs", "mlp", "sgd", "${model}", "???", "", None]) | _nodes, max_size=2,
    )
    | _nodes,
    max_size=4,
)  # fmt: skip
_contents = st.dictionaries(
    st.sampled_from([*(k.partition(".")[0] for k in KEYS), "hydra", "x"]), _nodes, max_size=3
)


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tree of the values under dotted keys, of which the first in each group is kept."""
    tree: dict[str, Any] = {}
    for key, value in values.items():
        first, *others = key.split(".")
        for name in reversed(others):
            value = {name: value}
        tree.setdefault(first, value)
    return tree


_trees = st.dictionaries(st.sampled_from([*KEYS, *HYDRA_KEYS]), _nodes, max_size=3).map(_nested)
_headers = st.sampled_from(
    ["# @package _global_\n"] * 5
    + ["", "# @package a.b\n", "# @package\n", "# @package a b\n", "# @ x y z\n", "# @package _group_\n"]
)


def _dump(header: str, content: Mapping[str, Any], defaults: Any) -> bytes:
    text = yaml.safe_dump({**({"defaults": defaults} if defaults else {}), **content}, sort_keys=False)
    return (header + text).encode("utf-8", "surrogatepass")


_written = st.builds(_dump, _headers, _contents | _trees, _mixed((2, st.just([])), (1, _defaults)))
_originals = [p.read_bytes() for p in conf_files("*/*.yaml").values() if p.parent.name != "wandb_sweep"]
_pieces = [
    b"\x00", b"\x01", b"\x1b[2J", b"\t", b"\xff\xfe", b"\x80", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\n", b" ", b":",
    b"- ", b"[", b"]", b"{", b"}", b"'", b'"', b"&a ", b"*a", b"<<: *a\n", b"? ", b"!!python/object:os.system ",
    b"!!int ", b"!!binary ", b"!!set ", b"!!timestamp ", b"!!float ", b"!!bool ", b"!x ", b"---\n", b"...\n",
    b"%YAML 9.9\n", b"#", b"\r", b"\xc2\x85", b"|", b">", b"[" * 3000, b"{a: " * 200, b"a: &a [*a]\n", b"2020-99-99",
    b"0o9", b"1:99:99", b"x" * 100_000, b"9" * 5000, b"defaults: [theirs]\n", b"${", b"${a}", b"\\", b"1: 2\n",
    b"null: 3\n", b"[a]: 4\n",
]  # fmt: skip


def _mutated(text: bytes, cuts: Sequence[tuple[int, int]], pieces: Sequence[bytes]) -> bytes:
    for (position, length), piece in zip(cuts, pieces, strict=True):
        at = position % (len(text) + 1)
        text = text[:at] + piece + text[at + length :]
    return text


def _mutations(size: int) -> st.SearchStrategy[bytes]:
    cuts = st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 30)), min_size=size, max_size=size)
    pieces = st.lists(st.just(b"") | st.sampled_from(_pieces), min_size=size, max_size=size)
    return st.builds(_mutated, st.sampled_from(_originals), cuts, pieces)


_raw = st.integers(1, 3).flatmap(_mutations) | st.lists(st.sampled_from(_pieces), max_size=6).map(b"".join)


def _case(command: Sequence[str], group: str, content: bytes, drawn: Sequence[str]) -> ConfigCase:
    return ConfigCase(_line(command, drawn, f"{group}=theirs"), {f"conf/{group}/theirs.yaml": content})


CONFIG_FILES = st.builds(
    _case, _command, st.sampled_from(["experiment"] * 4 + sorted(GROUPS)), _mixed((2, _written), (1, _raw)),
    st.lists(_words, max_size=1),
)  # fmt: skip
"""An option of a group in the user's conf folder, written by a program or damaged, and a command that chooses it."""


def write(case: ConfigCase, folder: Path) -> None:
    """Write the files of a case."""
    for name, content in case.files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


__all__ = ["COMMAND_LINES", "CONFIG_FILES", "TINY", "ConfigCase", "draw", "write"]
