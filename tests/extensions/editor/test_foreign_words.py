"""Each word of another framework is answered with what to write here, and what to write works."""

import re
import shlex
from collections.abc import Iterator

import marks
import pytest

from hydrant import cli
from hydrant.commands.train import parse_flags
from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.config.groups import options_with
from hydrant.errors import ConfigError
from hydrant.extensions.editor.foreign_words import is_override, own_words, read_tables

SAMPLES = {
    "optimizer": "sgd", "scheduler": "linear", "tracker": "local", "hook": "diagnostics", "best.metric": "val/loss",
    "parallel": "fsdp", "precision": "bf16", "data": "synthetic", "model": "convnet", "task.label_smoothing": "0.1",
    "tracker.project": "study", "cudnn_benchmark": "true", "parallel.sync_batch_norm": "true", "best.mode": "max",
    "test_at_end": "true", "task.loss._target_": "torch.nn.HuberLoss", "task.class_weights": "balanced",
    "model.dropout": "0.5", "label_noise": "0.1",
}  # fmt: skip
"""Values of keys that take no number."""

CHOICES = {
    "fold": "folds=5",
    "data.num_workers": "data=image_folder data.num_classes=2",
    "optimizer.momentum": "optimizer=sgd",
}
"""Options that have the keys."""

ASKED = {
    "lr=0.1": "optimizer.lr=0.1",
    "+lr=0.1": "optimizer.lr=0.1",
    "model.lr=0.1": "optimizer.lr=0.1",
    "+model.lr=0.1": "optimizer.lr=0.1",
    "model.optimizer.lr=0.1": "optimizer.lr=0.1",
    "model.optimizer.weight_decay=0.1": "optimizer.weight_decay=0.1",
    "model.optimizer.eps=1e-7": "optimizer.eps=1e-7",
    "model.net.dropout=0.2": "model.dropout=0.2",
    "logger.wandb.mode=offline": "tracker.mode=offline",
    "learning_rate=0.1": "optimizer.lr=0.1",
    "optimizer.learning_rate=0.1": "optimizer.lr=0.1",
    "epochs=10": "duration=10ep",
    "duration=10 epochs": "duration=<value>ep",
    "task=mse": "task=regression",
    "scheduler=cosine_warmup": "scheduler=cosine scheduler.warmup=5%",
    "max_epochs=10,20": "duration=10ep,20ep",
    "num_train_epochs=3": "duration=3ep",
    "trainer.max_epochs=10": "duration=10ep",
    "++trainer.max_steps=500": "duration=500",
    "batch_size=32": "global_batch_size=32",
    "data.label_noise=0.15": "label_noise=0.15",
    "data.batch_size=32": "global_batch_size=32",
    "per_device_train_batch_size=8": "global_batch_size=8",
    "gradient_accumulation_steps=4": "micro_batch_size=<global_batch_size / 4>",
    "ckpt_path=outputs/first": "resume=outputs/first",
    "logger=wandb": "tracker=wandb",
    "logger=csv": "tracker=local",
    "tracker=none": "tracker=local",
    "tracker=false": "tracker=local",
    "tracker=null": "tracker=local",
    "callbacks=early_stopping": "patience=5 eval_every=1ep",
    "trainer.callbacks=[EarlyStopping]": "patience=5 eval_every=1ep",
    "callbacks.early_stopping.patience=3": "patience=3 eval_every=1ep",
    "early_stopping.patience=3": "patience=3 eval_every=1ep",
    "model_checkpoint.every_n_epochs=2": "save_every=2ep",
    "logger=[wandb,csv]": "tracker=wandb",
    "monitor=val_acc": "best.metric=val/accuracy",
    "monitor=val_loss": "best.metric=val/loss",
    "metric_for_best_model=eval_loss": "best.metric=val/loss",
    "trainer.val_check_interval=0.5": "eval_every=0.5ep",
    "trainer.val_check_interval=500": "eval_every=500",
    "trainer.max_time=00:12:00:00": "hook=stop_at hooks.stop_at.time=12h",
    "trainer.profiler=simple": "profiler=torch",
    "trainer.benchmark=true": "cudnn_benchmark=true",
    "trainer.sync_batchnorm=true": "parallel.sync_batch_norm=true",
    "trainer.default_root_dir=runs": "hydra.run.dir=runs",
    "trainer.gradient_clip_algorithm=value": "max_grad_value=<gradient_clip_val>",
    "trainer.accumulate=2": "micro_batch_size=<global_batch_size / 2>",
    "trainer.devices=auto": "parallel.num_processes=<number of GPUs>",
    "trainer.devices=2": "parallel.num_processes=2",
    "debug=default": "debug=smoke",
    "debug=fdr": "debug=smoke",
    "num_workers=0": "data.num_workers=0",
    "swa=true": "averaging=ema",
    "sync_batchnorm=true": "parallel.sync_batch_norm=true",
    "dropout=0.1": "model.dropout=0.1",
    "optimizer=torch.optim.AdamW": "optimizer=adamw",
    "optimizer=RMSprop": "optimizer=rmsprop",
    "precision=bf16-mixed": "precision=bf16",
    "precision=16-mixed": "precision=fp16",
    "precision=32-true": "precision=fp32",
    "precision=32": "precision=fp32",
    "trainer.precision=16-mixed": "precision=fp16",
    "model=vit_b_16": "~model '+model={_target_: torchvision.models.vit_b_16, num_classes: ${data.num_classes}}'",
    "compile=true": "compile=default",
    "fp16=true": "precision=fp16",
    "fp16=false": "precision=fp32",
    "bf16=False": "precision=fp32",
    "amp=false": "precision=fp32",
    "--use-amp false": "precision=fp32",
    "torch_compile=false": "compile=eager",
    "trainer.deterministic=false": "deterministic=false",
    "trainer.deterministic=warn": "deterministic=true",
    "optim=adamw_torch": "optimizer=adamw",
    "--lr 0.1": "optimizer.lr=0.1",
    "--learning-rate=0.1": "optimizer.lr=0.1",
    "--max_epochs": "duration=<value>ep",
    "--optimizer.lr 0.1": "optimizer.lr=0.1",
    "--seed 3": "seed=3",
    "momentum=0.9": "optimizer.momentum=0.9",
    "+momentum=0.9": "optimizer.momentum=<value>",
    "--momentum 0.9": "optimizer.momentum=0.9",
    "class_weights=balanced": "task.class_weights=balanced",
    "class_weight=balanced": "task.class_weights=balanced",
    "label_smoothing=0.1": "task.label_smoothing=0.1",
    "val_ratio=0.3": "data.val_ratio=0.3",
    "num_classes=10": "data.num_classes=10 or model.num_classes=10",
    "mode=max": "best.mode=max",
    "loss=mse": "task=regression",
    "loss=torch.nn.MultiMarginLoss": "task.loss._target_=torch.nn.MultiMarginLoss task=supervised",
    "loss=sparse_categorical_crossentropy": "task=classification",
    "loss=binary_crossentropy": "task=classification task.multi_label=true",
}


ADVISED = {
    "trainer.whatever=1": "there is no trainer; its settings are keys at the top level",
    "trainer=whatever": "there is no trainer",
    "trainer.num_nodes=2": "start the ranks with torchrun --nnodes=2",
    "trainer.num_sanity_val_steps=0": "leave it out",
    "trainer.enable_progress_bar=false": "leave it out",
    "trainer.min_epochs=3": "leave it out",
    "trainer.devices=[0,1]": "put CUDA_VISIBLE_DEVICES=0,1 in front of the command, and write parallel.num_processes=",
    "accelerator=cpu": "put CUDA_VISIBLE_DEVICES= in front of the command",
    "accelerator=gpu": "leave it out",
    "callbacks=rich_progress_bar": "leave it out (a terminal shows a progress bar)",
    "callbacks=LearningRateMonitor": "leave it out (optim/lr is logged",
    "callbacks=theirs": "choose a hook",
    "callbacks=[ModelCheckpoint,RichProgressBar]": "write save_every=1ep keep_best=1; leave it out",
    "trainer.fast_dev_run=false": "leave it out",
    "train=false": "use another command: hydrant evaluate RUN",
}
"""Words that no override replaces."""


def message(words: str) -> str:
    """Return the error of a command line."""
    with pytest.raises(ConfigError) as caught:
        check(compose(parse_flags(shlex.split(words)).overrides))
    return str(caught.value)


@pytest.mark.parametrize(("foreign", "own"), ASKED.items(), ids=ASKED)
def test_a_word_is_answered_with_what_to_write(foreign: str, own: str) -> None:
    answer = message(foreign)
    assert re.search(
        r"(no such key|no option \S+|has no flag \S+|has no argument \S+|'[\w.]+' has no value); "
        rf"write {re.escape(own)}( \(|$)",
        answer,
    ), answer
    assert "\n" not in answer


@pytest.mark.parametrize(("foreign", "advice"), ADVISED.items(), ids=ADVISED)
def test_a_word_that_no_override_replaces_is_answered_with_what_to_do(foreign: str, advice: str) -> None:
    assert f": no such key; {advice}" in message(foreign)


def test_a_key_that_a_part_of_the_model_lacks_is_not_moved() -> None:
    answer = message("'+model.net={width: 1}' model.net.depth=3")
    assert "model.net.depth: no such key" in answer
    assert "write model.depth" not in answer


@pytest.mark.parametrize(
    ("words", "end"),
    [
        ("task.metrics.f1._target_=torchmetrics.F1Score", "to add it, write + before the key"),
        ("hook=freeze", "; give 'hooks.freeze.stages=[{match: backbone, until: 2ep}]'"),
        *marks.slow(("+task.metrics.f1=F1Score", "classification.MulticlassF1Score, num_classes: 10}'")),
    ],
)
def test_a_part_is_answered_with_its_form(words: str, end: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check(compose(shlex.split(words)))
    answer = str(caught.value)
    assert answer.endswith(end)
    for example in re.findall(r"'(\+.*)'$", answer):
        check(compose([example]))


@pytest.mark.parametrize(
    ("key", "value", "own"),
    [
        ("optim", "{_target_: torch.optim.SGD}", "optimizer='{_target_: torch.optim.SGD}'"),
        ("batch_size", "${x}", "global_batch_size='${x}'"),
        ("max_epochs", "${f:1,2}", "duration='${f:1,2}ep'"),
        ("run_name", "{value}", "name={value}"),
    ],
)
def test_a_value_with_brackets_is_shown_as_it_is(key: str, value: str, own: str) -> None:
    assert (own_words(key, value) or "").startswith(f"write {own}")


def answers() -> Iterator[str]:
    """Yield everything that the tables say to write, with values that fit."""
    texts = [
        text
        for table in ("keys", "options")
        for words in read_tables()[table].values()
        for text in ([words] if isinstance(words, str) else words.values())
    ]
    for text in texts:
        if not is_override(text):
            continue
        override = text.partition(" (")[0].removeprefix("--multirun ")
        key = override.partition("=")[0]
        sample = "loss" if key == "best.metric" and "{1}" in override else SAMPLES.get(key, "2")
        yield re.sub(r"<[^>]*>", "16", re.sub(r"\{(value|1)\}", sample, override))


ANSWERS = sorted(
    {*answers(), *(own.partition(" or ")[0] for own in ASKED.values() if not re.search("<|ep,", own))}
)


@pytest.mark.parametrize(
    "words", [*ANSWERS[::8], *marks.slow(*(words for place, words in enumerate(ANSWERS) if place % 8))]
)
def test_what_is_to_be_written_works(words: str) -> None:
    choice = CHOICES.get(words.partition("=")[0], "")
    check(compose(shlex.split(f"{choice} {words}")))


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
        ("optimizer.maximize=true", ". If its _target_ takes it, write +optimizer.maximize=<value>"),
        ("compile.dynamic=true", "no such key. compile=default has it"),
        ("optimizer.momentum=0.9", ". optimizer=normuon or rmsprop or scion or sgd or torch_muon have it"),
        ("tracker=local tracker.project=x", "no such key. tracker=trackio or wandb have it"),
        ("model.depth=3", "num_classes. If its _target_ takes it, write +model.depth=<value>"),
    ],
)
def test_a_key_of_a_part_is_answered_with_options_that_have_it_or_how_to_add_it(words: str, end: str) -> None:
    assert message(words).endswith(end)


def test_an_option_that_inherits_a_key_is_not_named() -> None:
    assert options_with("parallel", "reshard_after_forward") == ["fsdp"]  # and not hsdp
    assert "cosine" in options_with("scheduler", "warmup")  # from _frame.yaml, which is no option


@pytest.mark.parametrize("words", ["watch", "help watch"])
def test_a_command_of_before_is_answered(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words.split()) == 2
    assert capsys.readouterr().err.startswith("error: unknown command 'watch'; `hydrant compare RUNS --html ")
