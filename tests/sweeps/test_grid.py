"""The grid sweeper: composes and checks all jobs before the first one starts."""

from pathlib import Path

import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from marks import of_extension
from sweeps import SHORT, short_with_fault, sweep_table
from training_runs import run_command

from hydrant import cli
from hydrant.config.command_line import check_grid
from hydrant.errors import ConfigError
from hydrant.sweeps.plan import usable_plan


def test_values_of_the_command_line_replace_those_of_a_file_in_the_number_of_jobs() -> None:
    """The file comes first. Its 480 jobs would be 10,080 with the 21 of the command line."""
    parser = OverridesParser.create()
    file = ["optimizer=a,b,c,d,e,f,g,h,i,j,k,l", "optimizer.lr=1,2,3,4,5,6,7,8", "seed=range(5)"]
    check_grid(
        parser.parse_overrides([*file, "optimizer=a,b,c,d,e,f,g", "optimizer.lr=0.1", "seed=10,11,12"])
    )
    check_grid(parser.parse_overrides(["seed=range(20000)", "seed=1,2"]))
    with pytest.raises(ConfigError, match="more than 10,000 jobs"):
        check_grid(parser.parse_overrides([*file, "seed=range(105)"]))


@pytest.mark.slow
def test_jobs_are_checked_once_for_all_seeds_and_have_their_environment(tmp_path: Path) -> None:
    swept = run_command(
        "-m",
        *short_with_fault(tmp_path),
        "name=study",
        "seed=0,1,2",
        "+hydra.job.env_set.FLAVOUR=vanilla",
        cwd=tmp_path,
    )
    assert swept.returncode == 0, swept.stderr
    built = [line.split() for line in (tmp_path / "built").read_text().splitlines()]
    assert len(built) == 1 + 3
    assert [flavour for _, flavour in built[1:]] == ["vanilla"] * 3


@pytest.mark.slow
def test_any_exception_of_a_model_refuses_the_sweep(tmp_path: Path) -> None:
    refused = run_command("-m", *short_with_fault(tmp_path), "model.fault=none,odd", cwd=tmp_path)
    assert refused.returncode == 2
    last = refused.stderr.splitlines()[-1]
    assert "model: custom.model refuses it: Odd: strange (at custom.py:10: raise Odd(" in last
    assert " has the traceback); " in last
    assert "Traceback" not in refused.stderr
    assert not (tmp_path / "multirun").exists()


@pytest.mark.slow
def test_hydra_interpolations_globs_and_subfolders_work_in_a_sweep(tmp_path: Path) -> None:
    swept = run_command(
        "-m", *SHORT, "name=study", "optimizer=adamw,sgd", "seed=${hydra:job.num}", "scheduler=glob(wsd*)",
        "hydra.sweep.subdir=${hydra:job.num}/deep", cwd=tmp_path,
    )  # fmt: skip
    assert swept.returncode == 0, swept.stderr
    assert [row["status"] for row in sweep_table(tmp_path / "multirun" / "study")] == ["finished"] * 2
    configs = [tmp_path / "multirun" / "study" / str(n) / "deep" / "config.yaml" for n in (0, 1)]
    assert [yaml.safe_load(config.read_text())["seed"] for config in configs] == [0, 1]


@pytest.mark.slow
def test_a_sweep_finds_the_folders_of_commands_that_varied_other_keys_and_counts_added_seeds(
    tmp_path: Path,
) -> None:
    sweep, words = tmp_path / "multirun" / "study", ("-m", *SHORT, "name=study")
    assert run_command(*words, "data=digits", "seed=0,1", cwd=tmp_path).returncode == 0
    names = {path.name for path in sweep.iterdir() if path.is_dir()}
    assert {name[:6] for name in names} == {"seed-0", "seed-1"}
    old = next(path for path in sweep.iterdir() if path.name.startswith("seed-1"))
    old.rename(sweep / "_".join(sorted(old.name.split("_"))))  # the order of earlier versions
    again = run_command(*words, "data=digits", "optimizer=adamw,sgd", "seed=0,1", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert len(sweep_table(sweep)) == 4 + 2, (
        "the first command chose no optimizer, so its jobs have other overrides"
    )
    before = {path.name for path in sweep.iterdir()}
    third = run_command(*words, "data=digits", "optimizer=adamw", "seed=0,1", cwd=tmp_path)
    assert third.returncode == 0, third.stderr
    assert {path.name for path in sweep.iterdir()} == before
    assert usable_plan(sweep)[0].num_seed_additions == 0, "other settings, and a command again, add no seed"
    for _ in range(2):
        longer = run_command(*words, "data=digits", "optimizer=adamw", "seed=0,1,2", cwd=tmp_path)
        assert longer.returncode == 0, longer.stderr
        assert usable_plan(sweep)[0].num_seed_additions == 1


@pytest.mark.slow
def test_a_job_leaves_the_same_records_with_every_launcher(workdir: Path) -> None:
    """But for the launcher's own."""
    for launcher in ("basic", "local"):
        words = (f"hydra/launcher={launcher}", "duration=1", "model.hidden=[8]", "tracker=local", "seed=0,1")
        done = run_command("--multirun", *words, "name=study", f"hydra.sweep.dir={launcher}", cwd=workdir)
        assert done.returncode == 0, done.stderr
    runs = [path.relative_to(workdir / "basic") for path in sorted((workdir / "basic").glob("seed*"))]
    assert len(runs) == 2
    for file in (
        run / ".hydra" / name for run in runs for name in ("hydra.yaml", "config.yaml", "overrides.yaml")
    ):
        by_hydra, by_grid = (
            yaml.safe_load((workdir / name / file).read_text()) for name in ("basic", "local")
        )
        if "hydra" in by_hydra:
            for records in (by_hydra["hydra"], by_grid["hydra"]):
                del records["launcher"], records["overrides"]["hydra"]
                del records["runtime"]["choices"]["hydra/launcher"]
            text = yaml.safe_dump(by_hydra).replace("basic", "local")
            by_hydra = yaml.safe_load(text)
        assert by_hydra == by_grid


def test_a_file_may_make_every_command_a_sweep(workdir: Path) -> None:
    grid = workdir / "conf" / "sweep" / "mine.yaml"
    grid.parent.mkdir(parents=True)
    grid.write_text('# @package _global_\nhydra: {mode: MULTIRUN, sweeper: {params: {seed: "0,1"}}}\n')
    words = ("sweep=mine", "name=study", "tracker=local", "model.hidden=[4]", "duration=1")
    assert cli.main(["train", *words]) == 0
    assert len(sweep_table(workdir / "multirun" / "study")) == 2


def test_an_error_of_a_sweep_is_told_if_a_word_makes_it_one(
    workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["train", "hydra.mode=MULTIRUN", "seed=0,1", "bogus=3"]) == 2
    assert "bogus" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("sweeper", ["grid", *of_extension("study", "optuna")])
def test_the_grids_of_swept_options_are_not_dropped(
    sweeper: str, workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, values in {"a": "1e-3,2e-3", "b": "0.1,0.2"}.items():
        file = workdir / "conf" / "experiment" / f"{name}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(
            f"# @package _global_\nhydra: {{sweeper: {{params: {{optimizer.lr: '{values}'}}}}}}\n"
        )
    words = (*SHORT, f"hydra/sweeper={sweeper}", "hydra.sweep.dir=here")
    assert cli.main(["train", "-m", *words, "experiment=a,b"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "the values of optimizer.lr are set by an option that the sweep varies" in error
    assert "give each such option a command of its own" in error
    assert not (workdir / "here").exists()
