"""Whatever is written on the command line is a config that can run, or one line with status 2; never a traceback."""

from __future__ import annotations

import shutil
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hydrant import cli
from hydrant.config import check, compose, conf_dir, flatten
from hydrant.options import group_options

TINY = [
    "tracker=local", "data=synthetic", "data.input_shape=[1,4,4]", "data.num_classes=3", "data.num_samples=16",
    "data.num_val_samples=4", "model.hidden=[4]", "global_batch_size=8", "duration=1", "log_every=1",
    "eval_every=null", "save_every=null",
]  # fmt: skip

GROUPS = {name: options for name, options in group_options().items() if name not in ("experiment", "debug")}
KEYS = sorted(set(flatten(yaml.safe_load((conf_dir() / "train.yaml").read_text()))) - {"defaults"}) + sorted(
    f"{path.parent.name}.{key}"
    for path in conf_dir().glob("*/[!_]*.yaml")
    if path.parent.name != "wandb_sweep"
    for key in flatten(yaml.safe_load(path.read_text()) or {})
    if not key.startswith(("_", "defaults"))
)

ODD = r"""
null true false nan -.inf inf -1 0 1 0.0 1e400 -1e-400 10**9 0x1f 1_000 '' [] {} [null] [[1]] {a:1} ??? auto
{_target_:os.system} 5% 150% -3ep 0ep 3sa 1e3ep nanep ${seed} ${nowhere} ${oc.env:HOME} \${seed} ${ } ] [1 {a: ' "
a,b 0,1 range(1,3) range(3,1) choice(a,b) interval(0,1) glob(*) sort(1,2) cast(int,x) int(3) float(a) !!python/object:x
a=b = ../.. /dev/null ~ @ &a *a # a#b : - \ % é 日本 torch.optim.SGD hydrant sgd adamw cosine
"""
NEAR = "0 1 2 3 8 0.1 0.5 1.5 -1 1e-3 null true false 1ep 50% [1] [4,4] [0.9,0.99] val/loss min max"
PRESENT = sorted(flatten(check(compose(TINY))))
WORDS = [
    *ODD.split(),
    "' '",
    "a b",
    "a\tb",
    "a\nb",
    "",
    "x" * 3000,
    "9" * 40,
    "\u202e",
    "\U0001f600",
    "\udc80",
]

values = (
    st.sampled_from(WORDS)
    | st.integers(-(10**12), 10**12).map(str)
    | st.floats().map(repr)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
    | st.lists(st.sampled_from(WORDS[:20]), max_size=3).map(lambda items: f"[{','.join(items)}]")
)
keys = (
    st.sampled_from(KEYS)
    | st.sampled_from(KEYS).map(lambda key: f"{key}.x")
    | st.sampled_from(KEYS).map(lambda key: key[:-1])
    | st.sampled_from(
        [*GROUPS, "experiment", "scheduler@schedules.weight_decay", "optimizers.a", "hydra.job.name", "x"]
    )
    | st.text(max_size=6)
)
choices = st.sampled_from(sorted(GROUPS)).flatmap(
    lambda group: st.sampled_from(GROUPS[group]).map(lambda option: f"{group}={option}")
)
edits = st.builds("{}{}={}".format, st.sampled_from(["", "", "", "", "+", "++", "~"]), keys, values)
near = st.builds("{}={}".format, st.sampled_from(PRESENT), st.sampled_from(NEAR.split()))
words = edits | near | near | choices | choices | st.builds("~{}".format, keys) | values
overrides = st.lists(words.filter(lambda word: "\0" not in word), min_size=1, max_size=2)

SLOW_PARTS = ("timm", "max_autotune", "fp8", "mnist", "cifar", "image_folder", "reduce_overhead")
"""Options that take seconds to import or to compile, or need files; tests of their own have them."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("fuzzed")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["hydrant"])
        yield folder


def outcome(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """The status of a command and the last line of stderr; asserts that there is no traceback."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what a part says about odd arguments
        status = cli.main(list(arguments))
    printed = capfd.readouterr()
    assert "Traceback" not in printed.out + printed.err
    return status, printed.err.splitlines()[-1] if printed.err.strip() else ""


def is_refused_or_checked(capfd: pytest.CaptureFixture[str], given: list[str]) -> bool:
    """Whether a config can be made of it; if not, it was said in one line."""
    if any(part in word for part in SLOW_PARTS for word in given):
        return False
    status, last = outcome(capfd, "preview", *TINY, *given)
    assert status in (0, 2), last
    if status == 2:
        assert last.startswith("error: ")
        assert len(last) > len("error: ") + 5
        return False
    resolved = check(compose([*TINY, *given]))
    assert check(compose([*TINY, *given])) == resolved
    return True


def trains(capfd: pytest.CaptureFixture[str], folder: Path, given: list[str]) -> None:
    """A config that was found right starts, and ends with a status and at most one line of its own."""
    shutil.rmtree(folder / "outputs", ignore_errors=True)
    status, last = outcome(capfd, "train", *TINY, *given)
    assert status in (0, 1, 2), last
    assert (status == 0) or last.startswith("error: ")
    for summary in folder.glob("outputs/**/summary.json"):
        found = yaml.safe_load(summary.read_text())
        assert found["status"] == ("finished" if status == 0 else "failed")


COMMON = settings(
    deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.filter_too_much],
)  # fmt: skip


@settings(COMMON, max_examples=30)
@given(given_words=overrides)
def test_a_few_edits(folder: Path, capfd: pytest.CaptureFixture[str], given_words: list[str]) -> None:
    is_refused_or_checked(capfd, given_words)


@pytest.mark.slow
@settings(COMMON, max_examples=500)
@given(given_words=overrides)
def test_many_edits(folder: Path, capfd: pytest.CaptureFixture[str], given_words: list[str]) -> None:
    if is_refused_or_checked(capfd, given_words):
        trains(capfd, folder, given_words)
