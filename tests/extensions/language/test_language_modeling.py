"""The loss in parts is that of all tokens, runs equal a loop written by hand, and measures equal their formulas."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from language_models import LENGTH, TINY, VOCAB_SIZE, gpt, save_tokens
from marks import slow
from run_folders import assert_close_rows, rows, weights
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from training_runs import Train, train_in_child, whole_and_resumed

from hydrant import cli, seeding
from hydrant.batch import Batch
from hydrant.data.base import SampleOrder
from hydrant.extensions.language import LanguageModeling
from hydrant.extensions.language.language_modeling import BitsPerByte, Perplexity, UnigramEntropy

NUM_SAMPLES = 4
GIB = 4 / 2**30  # of one logit


def make_task(model: nn.Module | None = None, **changed: Any) -> LanguageModeling:
    settings: dict[str, Any] = {"z_loss": 0.0, "ignore_index": -100, "max_logits_gib": None}
    torch.manual_seed(0)
    return LanguageModeling(gpt(zero_init=False) if model is None else model, **settings | changed)


def make_batch(ignored: float = 0.0) -> Batch:
    generator = torch.Generator().manual_seed(1)
    inputs, targets = torch.randint(VOCAB_SIZE, (2, NUM_SAMPLES, LENGTH), generator=generator)
    drop = torch.rand(targets.shape, generator=generator) < ignored
    return Batch(inputs, targets.masked_fill(drop, -100))


def loss_and_gradients(task: LanguageModeling, batch: Batch) -> tuple[float, list[Tensor]]:
    loss = task(batch).total_loss()
    loss.backward()
    return float(loss.detach()), [p.grad for p in task.parameters() if p.grad is not None]


@pytest.mark.parametrize("changed", [{}, {"z_loss": 1e-2}])
@pytest.mark.parametrize("ignored", [0.0, 0.4])
def test_the_loss_in_parts_is_that_of_all_tokens(changed: dict[str, Any], ignored: float) -> None:
    batch = make_batch(ignored)
    whole = loss_and_gradients(make_task(**changed), batch)
    parts = loss_and_gradients(make_task(max_logits_gib=10 * VOCAB_SIZE * GIB, **changed), batch)
    logits = make_task().model(batch.inputs).flatten(0, 1)
    counts = batch.targets.flatten() != -100
    expected = F.cross_entropy(logits, batch.targets.flatten())
    expected += changed.get("z_loss", 0) * logits.logsumexp(-1)[counts].square().mean()
    assert whole[0] == pytest.approx(float(expected.detach()), rel=1e-6)
    assert parts[0] == pytest.approx(whole[0], rel=1e-6)
    for one, other in zip(whole[1], parts[1], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-7)


class Largest(TorchDispatchMode):
    """Records the most numbers that a new tensor has."""

    numel = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = function(*args, **(kwargs or {}))
        for tensor in output if isinstance(output, tuple | list) else (output,):
            self.numel = max(self.numel, tensor.numel() if isinstance(tensor, Tensor) else 0)
        return output


def test_in_parts_the_logits_of_all_tokens_are_never_in_memory() -> None:
    num_tokens, vocab_size, per_part = NUM_SAMPLES * LENGTH, 4096, 8
    numbers = {}
    for limit in (None, per_part * vocab_size * GIB):
        task, saved = make_task(gpt(vocab_size=vocab_size), max_logits_gib=limit), dict[int, int]()
        batch = Batch(torch.zeros(NUM_SAMPLES, LENGTH).long(), torch.ones(NUM_SAMPLES, LENGTH).long())

        def keep(tensor: Tensor, saved: dict[int, int] = saved) -> Tensor:
            saved[tensor.untyped_storage().data_ptr()] = tensor.numel()
            return tensor

        with Largest() as largest:
            with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
                loss = task(batch).total_loss()
            loss.backward()
        numbers[limit is None] = (largest.numel, sum(saved.values()))
    weight = 16 * vocab_size
    assert numbers[True][0] >= num_tokens * vocab_size
    assert numbers[False][0] == max(weight, per_part * vocab_size)
    assert numbers[True][1] - numbers[False][1] >= num_tokens * vocab_size / 2


def test_a_model_without_a_separate_readout_gives_logits() -> None:
    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(VOCAB_SIZE, VOCAB_SIZE)

        def forward(self, inputs: Tensor) -> Tensor:
            return self.table(inputs)

    task, batch = make_task(Logits(), max_logits_gib=GIB), make_batch()
    logits = task.model(batch.inputs).flatten(0, 1)
    assert torch.allclose(task(batch).total_loss(), F.cross_entropy(logits, batch.targets.flatten()))


def test_predictions_are_the_most_probable_tokens() -> None:
    batch = make_batch()
    whole, parts = (make_task(max_logits_gib=limit).predict(batch.inputs) for limit in (None, 100 * GIB))
    probabilities = make_task().model(batch.inputs).softmax(-1)
    assert torch.equal(whole["prediction"], probabilities.argmax(-1))
    torch.testing.assert_close(whole["probability"], probabilities.max(-1).values)
    assert torch.equal(whole["prediction"], parts["prediction"])


@pytest.mark.parametrize("ignored", [-100, 0, 2])
def test_measures_are_those_of_all_tokens_of_a_split_that_count(ignored: int) -> None:
    torch.manual_seed(0)
    token_bytes = [0, 1, 2, 5]
    metrics = [Perplexity(ignored), BitsPerByte(token_bytes, ignored), UnigramEntropy(4, ignored)]
    losses, targets = torch.rand(7, 10), torch.randint(4, (7, 10))
    targets[torch.rand(7, 10) < 0.3] = -100
    is_counted = (targets >= 0) & (targets != ignored)
    losses[~is_counted] = 0
    for metric in metrics:
        for part in (slice(0, 2), slice(2, 7)):
            metric.update(losses[part], targets[part])
    counted = targets[is_counted]
    num_bytes = sum(token_bytes[token] for token in counted.tolist())
    frequencies = counted.bincount(minlength=4) / len(counted)
    expected = [
        math.exp(float(losses.sum()) / len(counted)),
        float(losses[is_counted & (targets > 0)].sum()) / math.log(2) / num_bytes,
        -float(frequencies.xlogy(frequencies).sum()),
    ]
    assert [float(metric.compute()) for metric in metrics] == pytest.approx(expected, rel=1e-5)


def test_the_data_say_what_is_measured() -> None:
    task, plain = make_task(), make_task()
    task.receive_data(SimpleNamespace(class_names=None, vocab_size=4, token_bytes=[1] * 4))
    plain.receive_data(SimpleNamespace(class_names=None))
    assert {*task.metrics} == {"perplexity", "bits_per_byte", "unigram_entropy"}
    assert {*plain.metrics} == {"perplexity"}


def trained_by_hand(num_updates: int, batch_size: int) -> dict[str, Tensor]:
    """Train like `TINY` in plain PyTorch; return the weights."""
    seeding.seed_process(0, seeding.MODEL)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model, data = gpt().to(device), torch.load("tokens.pt", map_location=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, fused=True)
    order = SampleOrder(0, len(data["inputs"]), torch.device("cpu"))
    for update in range(num_updates):
        optimizer.param_groups[0]["lr"] = 1e-3 * (1 + math.cos(math.pi * update / num_updates)) / 2
        chosen = order.draws(update * batch_size, batch_size) % len(data["inputs"])
        logits = model(data["inputs"][chosen])
        loss = F.cross_entropy(logits.flatten(0, 1), data["targets"][chosen].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {name: value.cpu() for name, value in model.state_dict().items()}


def test_a_run_equals_loop_written_by_hand_bit_for_bit(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    save_tokens()
    whole, resumed = whole_and_resumed(train, monkeypatch, TINY, stop_at=3)
    assert rows(whole) == rows(resumed)
    by_hand, trained = trained_by_hand(4, 8), weights(whole)
    assert by_hand.keys() == trained.keys()
    for name, expected in by_hand.items():
        assert torch.equal(expected, trained[name]), name


@pytest.mark.slow
def test_a_run_does_not_depend_on_its_parts(train: Train) -> None:
    save_tokens(ignored=0.3)
    whole = train(*TINY, "task.z_loss=1e-3", name="whole")
    parts = train(*TINY, "task.z_loss=1e-3", "micro_batch_size=2", f"task.max_logits_gib={20 * VOCAB_SIZE * GIB}",
                  "model.activation_checkpointing=true", name="parts")  # fmt: skip
    assert_close_rows(whole, parts, rel=1e-4)


@pytest.mark.parametrize(
    ("words", "rel"),
    [
        *slow((("parallel.num_processes=2",), 1e-5), (("parallel=fsdp", "parallel.num_processes=2"), 1e-5)),
        *slow((("compile=dynamo",), 1e-4), (("compile=dynamo", "compile.scope=blocks"), 1e-4)),
        *slow((("compile=dynamo", "compile.scope=model"), 1e-4), (("precision=bf16",), 0.05)),
    ],
)  # fmt: skip
def test_a_run_is_the_same_on_ranks_compiled_and_in_bf16(
    words: tuple[str, ...], rel: float, workdir: Path
) -> None:
    save_tokens(ignored=0.3)
    common = (*TINY, f"task.max_logits_gib={60 * VOCAB_SIZE * GIB}", "max_grad_norm=1")
    one, other = train_in_child(workdir, "one", *common), train_in_child(workdir, "other", *common, *words)

    def losses(folder: Path) -> list[dict[str, Any]]:
        return [{k: v for k, v in row.items() if k.startswith(("train/", "val/"))} for row in rows(folder)]

    assert_close_rows(one, other, rel=rel, read=losses)


def test_a_model_of_other_outputs_is_refused(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_tokens()
    common = [word for word in TINY if not word.startswith("model")]
    words = ("model=mlp", "model.num_classes=3", "model.input_shape=[16]")
    assert cli.main(["train", *common, *words]) == 2
    assert "model: " in capsys.readouterr().err
