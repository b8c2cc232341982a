"""Each word of another framework is answered with what to write here, and what to write works."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import marks
import pytest

from hydrant.config.check import check
from hydrant.config.command_line import flags_first
from hydrant.config.compose import compose
from hydrant.config.error_messages import HYDRA_ERRORS, explain
from hydrant.config.foreign_words import KEYS, OPTIONS, own_words
from hydrant.config.groups import options_with
from hydrant.errors import ConfigError

SAMPLES = {
    "optimizer": "sgd", "scheduler": "linear", "tracker": "local", "hook": "diagnostics", "best.metric": "val/loss",
    "parallel": "fsdp", "precision": "bf16", "data": "synthetic", "model": "convnet", "task.label_smoothing": "0.1",
    "tracker.project": "study",
}  # fmt: skip
"""Values of keys that take no number."""

ASKED = {
    "lr=0.1": "optimizer.lr=0.1",
    "+lr=0.1": "optimizer.lr=0.1",
    "model.lr=0.1": "optimizer.lr=<value>",
    "learning_rate=0.1": "optimizer.lr=0.1",
    "epochs=10": "duration=10ep",
    "max_epochs=10,20": "duration=10ep,20ep",
    "num_train_epochs=3": "duration=3ep",
    "trainer.max_epochs=10": "duration=10ep",
    "++trainer.max_steps=500": "duration=500",
    "batch_size=32": "global_batch_size=32",
    "data.batch_size=32": "global_batch_size=<value>",
    "per_device_train_batch_size=8": "global_batch_size=8",
    "gradient_accumulation_steps=4": "micro_batch_size=<global_batch_size / 4>",
    "ckpt_path=outputs/first": "resume=outputs/first",
    "logger=wandb": "tracker=wandb",
    "logger=csv": "tracker=local",
    "callbacks=early_stopping": "patience=5",
    "precision=bf16-mixed": "precision=bf16",
    "precision=16-mixed": "precision=fp16",
    "precision=32-true": "precision=fp32",
    "precision=32": "precision=fp32",
    "trainer.precision=16-mixed": "precision=fp16",
    "model=resnet18": "model=timm model.name=resnet18",
    "model=vit_b_16": "~model '+model={_target_: torchvision.models.vit_b_16, num_classes: ${data.num_classes}}'",
    "compile=true": "compile=default",
    "fp16=true": "precision=fp16",
    "fp16=false": "precision=fp32",
    "bf16=False": "precision=fp32",
    "amp=false": "precision=fp32",
    "--use-amp false": "precision=fp32",
    "torch_compile=false": "compile=eager",
    "trainer.fast_dev_run=false": "debug=null",
    "trainer.deterministic=false": "deterministic=false",
    "trainer.deterministic=warn": "deterministic=true",
    "optim=adamw_torch": "optimizer=adamw",
    "--lr 0.1": "optimizer.lr=0.1",
    "--learning-rate=0.1": "optimizer.lr=0.1",
    "--max_epochs": "duration=<value>ep",
    "--optimizer.lr 0.1": "optimizer.lr=0.1",
    "--seed 3": "seed=3",
}


def message(words: str) -> str:
    """Return the error of a command line."""
    with pytest.raises((ConfigError, *HYDRA_ERRORS)) as caught:
        compose(flags_first(shlex.split(words)))
    return str(explain(caught.value))


@pytest.mark.parametrize(("foreign", "own"), ASKED.items(), ids=ASKED)
def test_a_word_is_answered_with_what_to_write(foreign: str, own: str) -> None:
    answer = message(foreign)
    assert re.search(
        rf"(no such key|no option \S+|has no flag \S+); write {re.escape(own)}( \(|$)", answer
    ), answer
    assert "\n" not in answer


@pytest.mark.parametrize(
    ("key", "value", "own"),
    [
        ("optim", "{_target_: torch.optim.SGD}", "optimizer={_target_: torch.optim.SGD}"),
        ("batch_size", "${x}", "global_batch_size=${x}"),
        ("max_epochs", "${f:1,2}", "duration=${f:1,2}ep"),
        ("run_name", "{value}", "name={value}"),
    ],
)
def test_a_value_with_brackets_is_shown_as_it_is(key: str, value: str, own: str) -> None:
    assert (own_words(key, value) or "").startswith(own)


def answers() -> Iterator[str]:
    """Yield everything that the tables say to write, with values that fit."""
    texts = [
        text for words in KEYS.values() for text in ([words] if isinstance(words, str) else words.values())
    ]
    for text in [*texts, *(text for words in OPTIONS.values() for text in words.values())]:
        override = text.partition(" (")[0].removeprefix("--multirun ")
        sample = SAMPLES.get(override.partition("=")[0], "2")
        yield re.sub(r"<[^>]*>", "16", override.format(value=sample) if "<" not in override else override)


ANSWERS = sorted({*answers(), *(own for own in ASKED.values() if not re.search("<|ep,", own))})


@pytest.mark.parametrize(
    "words", [*ANSWERS[::8], *marks.slow(*(words for place, words in enumerate(ANSWERS) if place % 8))]
)
def test_what_is_to_be_written_works(words: str) -> None:
    check(compose(shlex.split(words)))


def test_a_key_that_exists_here_is_never_called_foreign() -> None:
    config = check(compose([]))
    keys = [
        *config,
        *(f"{group}.{key}" for group, node in config.items() if isinstance(node, dict) for key in node),
    ]
    assert [key for key in keys if own_words(key, "1")] == []


@pytest.mark.parametrize(
    ("words", "end"),
    [
        ("optimizer.maximize=true", ". To add it, write +optimizer.maximize=<value>"),
        ("compile.dynamic=true", "no such key. compile=default has it"),
        ("optimizer.momentum=0.9", ". optimizer=normuon or rmsprop or scion or sgd or torch_muon have it"),
        ("tracker=local tracker.project=x", "no such key. tracker=trackio or wandb have it"),
        ("model.depth=3", "Keys of model: dropout, hidden, input_shape, num_classes"),
    ],
)
def test_a_key_of_another_option_is_added_only_where_the_target_takes_it(words: str, end: str) -> None:
    assert message(words).endswith(end)


def test_an_option_that_inherits_a_key_is_not_named() -> None:
    assert options_with("compile", "mode") == ["default"]
    assert "cosine" in options_with("scheduler", "warmup")  # from _frame.yaml, which is no option
