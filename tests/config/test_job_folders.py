"""The folder names of a sweep's jobs, and which folder a job of a later command has."""

import itertools
import re

import pytest

from hydrant.config.flat import JobFolders, job_slug


def test_slugs_do_not_depend_on_the_order() -> None:
    overrides = ["optimizer=adamw", "optimizer.lr=1e-3", "seed=0"]
    assert len({job_slug(order) for order in itertools.permutations(overrides)}) == 1
    assert (
        job_slug(["name=study", *overrides])
        == job_slug(overrides)
        == "optimizer.lr-1e-3_optimizer-adamw_seed-0"
    )
    assert job_slug([]) == job_slug(["name=study"]) == "defaults"


def test_slugs_contain_neutral_keys_only_if_the_sweep_varies_them() -> None:
    words = ["tracker=local", "+tracker.tags=[a]", "keep_last=2", "resume_strict=false", "seed=0"]
    assert job_slug(words) == "seed-0"
    assert job_slug(words, ["tracker", "keep_last"]) == "keep_last-2_tracker-local_seed-0"
    assert job_slug(["parallel.param_dtype=bfloat16"]) == "parallel.param_dtype-bfloat16"


def test_slugs_begin_with_the_keys_that_the_sweep_varies() -> None:
    words = ["data=csv", "+data.note=a", "optimizer.lr=1e-3", "seed=0"]
    assert job_slug(words, ["optimizer.lr"]) == "optimizer.lr-1e-3_data.note-a_data-csv_seed-0"
    assert job_slug(words, ["seed", "optimizer.lr"]) == "optimizer.lr-1e-3_seed-0_data.note-a_data-csv"


@pytest.mark.parametrize("value", ["b", "b" * 200, "b/c"])  # the last two enter a hash
def test_a_job_keeps_its_folder_if_a_later_command_varies_other_keys(value: str) -> None:
    words, varied = (
        ["data=csv", f"+data.note={value}", "seed=0"],
        ([], ["seed"], ["data", "seed"], ["data.note"]),
    )
    for first, then in itertools.permutations(varied, 2):
        other = ["data=csv", "seed=1"]
        existing = {job_slug(words, first): words, job_slug(other, first): other}
        assert JobFolders(then, existing).name_of(words) == job_slug(words, first)
        assert JobFolders(then, existing).name_of([*words, "duration=1"]) not in existing


def test_slugs_of_different_jobs_differ_and_are_valid_folder_names() -> None:
    values = ["0.1", "-0.1", "1e-3", "1e+3", "a/b", "a:b", "[1,2]", "[12]", "{a:1}", "'x'", "x"]
    values += ["a b", "X" * 200, "X" * 201, "é" * 100, "日" * 100, "日" * 101]
    jobs = [[f"model.name={value}", f"seed={seed}"] for value in values for seed in (0, 1)]
    jobs += [[f"+scheduler@schedules.{field}=linear"] for field in ("weight_decay", "momentum")]
    jobs += [[f"{word}model.dropout{value}"] for word, value in (("~", ""), ("", "=0.1"), ("~", "=0.1"))]
    jobs += [[f"+data.api_key={word}-secret"] for word in ("first", "second")]
    slugs = [job_slug(job) for job in jobs]
    assert len(set(slugs)) == len(slugs)
    assert all(re.fullmatch(r"[\w.+-]+", slug) and len(slug.encode()) <= 120 for slug in slugs)
    assert not any("secret" in slug for slug in slugs)


@pytest.mark.parametrize(
    ("one", "other", "swept"),
    [
        (["model=net", "data=own_small"], ["model=net_small", "data=own"], ["model", "data"]),
        (["data.target=score_en_de"], ["data.target=score_de_en"], ["data.target"]),
        (["model=a_data-b", "seed=0"], ["model=a", "data=b", "seed=0"], ["model", "data", "seed"]),
        (["model=a", "data=b_seed-0"], ["model=a", "data=b", "seed=0"], ["model"]),
        (["model.dropout=0.1"], ["~model.dropout=0.1"], []),
        (["data.api_key=first-secret"], ["data.api_key=second-secret"], ["data.api_key"]),
    ],
)
def test_different_jobs_have_different_folders_which_they_keep(
    one: list[str], other: list[str], swept: list[str]
) -> None:
    for jobs in itertools.permutations([one, other]):
        folders = JobFolders(swept)
        names = [folders.name_of(job) for job in jobs]
        assert len(set(names)) == 2
        assert [folders.name_of(job) for job in jobs] == names
        recorded = dict(zip(names, [[word.replace("first-secret", "***").replace("second-secret", "***")
                                     for word in job] for job in jobs], strict=True))  # fmt: skip
        for keys in ([], swept, [*swept, "duration"]):
            later = JobFolders(keys, recorded)
            assert [later.name_of([*reversed(job)]) for job in jobs] == names
        alone = JobFolders(swept, {names[0]: recorded[names[0]]})
        assert alone.name_of(jobs[1]) != names[0]


def test_an_added_key_and_a_changed_one_are_the_same_job() -> None:
    folders = JobFolders()
    assert (
        folders.name_of(["+model.x=1"]) == folders.name_of(["++model.x=1"]) == folders.name_of(["model.x=1"])
    )


def test_a_folder_with_another_name_belongs_to_the_job_of_its_overrides() -> None:
    folders = JobFolders(["seed"], {"by-hand/0": ["name=study", "seed=0"], "seed-1": ["seed=2"]})
    assert folders.name_of(["name=study", "seed=0", "tracker=local"]) == "by-hand/0"
    assert folders.name_of(["seed=2"]) == "seed-1"
    assert folders.name_of(["seed=1"]).startswith("seed-1-")  # its own name is taken
