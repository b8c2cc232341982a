"""Any command line is either a config that runs, or a one-line error with exit status 2; never a traceback."""

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
from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.config.flat import flatten
from hydrant.config.groups import conf_dir, group_options

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
"""Options that take seconds to import or to compile, or need files; other tests cover them."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("fuzzed")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["hydrant"])
        yield folder


def status_and_last_line(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Return the exit status of a command and the last line of stderr; assert that there is no traceback."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that libraries emit for odd arguments
        status = cli.main(list(arguments))
    printed = capfd.readouterr()
    assert "Traceback" not in printed.out + printed.err
    return status, printed.err.splitlines()[-1] if printed.err.strip() else ""


def passes_preview(capfd: pytest.CaptureFixture[str], drawn: list[str]) -> bool:
    """Whether `preview` accepts the overrides; assert that it refuses the others in one line."""
    if any(part in word for part in SLOW_PARTS for word in drawn):
        return False
    status, last = status_and_last_line(capfd, "preview", *TINY, *drawn)
    assert status in (0, 2), last
    if status == 2:
        assert last.startswith("error: ")
        assert len(last) > len("error: ") + 5
        return False
    resolved = check(compose([*TINY, *drawn]))
    assert check(compose([*TINY, *drawn])) == resolved
    return True


def assert_trains(capfd: pytest.CaptureFixture[str], folder: Path, drawn: list[str]) -> None:
    """Train with a config that passed `preview`; assert that it ends with an exit status and at most one error line."""
    shutil.rmtree(folder / "outputs", ignore_errors=True)
    status, last = status_and_last_line(capfd, "train", *TINY, *drawn)
    assert status in (0, 1, 2), last
    assert (status == 0) or last.startswith("error: ")
    for summary in folder.glob("outputs/**/summary.json"):
        content = yaml.safe_load(summary.read_text())
        assert content["status"] == ("finished" if status == 0 else "failed")


COMMON = settings(
    deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.filter_too_much],
)  # fmt: skip


@settings(COMMON, max_examples=30)
@given(drawn=overrides)
def test_few_random_overrides(folder: Path, capfd: pytest.CaptureFixture[str], drawn: list[str]) -> None:
    passes_preview(capfd, drawn)


@pytest.mark.slow
@settings(COMMON, max_examples=500)
@given(drawn=overrides)
def test_many_random_overrides(folder: Path, capfd: pytest.CaptureFixture[str], drawn: list[str]) -> None:
    if passes_preview(capfd, drawn):
        assert_trains(capfd, folder, drawn)
