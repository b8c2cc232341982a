"""Language modeling: the next token of each token.

Texts that a language model continues, token by token, and the hook that logs them.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol, cast, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hydrant import seeding
from hydrant.batch import Batch, Outcome, Tensors, widened
from hydrant.errors import ConfigError
from hydrant.files.plain_values import NotNegative, Positive, PositiveInt
from hydrant.tasks.base import MetricOfSums, Task, tensor_targets
from hydrant.training.reports import eager_evaluation
from hydrant.training.trainer import Plan, Trainer

_NO_TARGET = -100
"""The `ignore_index` of torch's own losses, for a task in which every target counts."""


@runtime_checkable
class SeparateReadout(Protocol):
    """A model that returns hidden states, (B, L, width), if it is called with `readout=False`."""

    vocab_size: int

    def __call__(self, inputs: Any, *, readout: bool = True) -> Tensor:
        """Return the logits, (B, L, V), or without the readout the hidden states, (B, L, width)."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits, (..., V), of hidden states, (..., width)."""
        ...


class LanguageModeling(Task):
    """Cross entropy of the next token, in nats, as the mean over the tokens that count.

    The logits of a large vocabulary take more memory than the model. So if the model is a `SeparateReadout`, they are
    computed for a part of the tokens at a time, and again in the backward pass, which adds a quarter to the time of
    the readout. The loss and the gradients are those of all at once, up to rounding.

    Evaluations also measure `perplexity`, the exponential of the cross entropy; `bits_per_byte`, the cross entropy of
    the text in bits over its bytes, which does not depend on the tokenizer, if the data know the bytes of each token;
    and `unigram_entropy`, the least cross entropy of a model that does not read the text before a token.

    Args:
        model: `inputs -> logits (B, L, V)`.
        z_loss: factor of the mean squared log of the softmax's denominator. This loss keeps it near 0 (Chowdhery et
            al., "PaLM", 2022, section 5); 0: none.
        ignore_index: targets of this number do not count; None: all count.
        max_logits_gib: memory of float32 logits: the loss is computed for a part of the tokens at a time; None: at
            once.
    """

    best_metric: ClassVar[str] = "val/loss"

    def __init__(
        self,
        model: nn.Module,
        *,
        z_loss: NotNegative,
        ignore_index: int | None,
        max_logits_gib: Positive | None,
    ) -> None:
        super().__init__(model)
        self._z_loss, self.ignore_index = z_loss, ignore_index
        self._ignored = _NO_TARGET if ignore_index is None else ignore_index
        self._vocab_size = model.vocab_size if isinstance(model, SeparateReadout) else None  # pyrefly: ignore[unsafe-overlap]  # a Module may have any attribute
        self._max_logits = math.inf if max_logits_gib is None else max_logits_gib * 2**30 / 4

    def receive_data(self, data: Any) -> None:
        """Take the number of bytes of each token, and the size of the vocabulary."""
        super().receive_data(data)
        self.metrics["perplexity"] = Perplexity(self._ignored)
        if (vocab_size := getattr(data, "vocab_size", None)) is not None:
            self.metrics["unigram_entropy"] = UnigramEntropy(vocab_size, self._ignored)
        if (token_bytes := getattr(data, "token_bytes", None)) is not None:
            self.metrics["bits_per_byte"] = BitsPerByte(token_bytes, self._ignored)

    def forward(self, batch: Batch) -> Outcome:
        """`batch.targets` are the next tokens, (B, L) integers. The predictions are their losses, (B, L)."""
        targets = tensor_targets(batch.targets, "language_modeling").long()
        losses, squares = self._token_losses(batch.inputs, targets)
        num_targets: int | Tensor = targets.numel()
        if self.ignore_index is not None:
            num_targets = (targets != self.ignore_index).sum()
        least = num_targets.clamp(min=1) if isinstance(num_targets, Tensor) else max(num_targets, 1)
        parts = {"cross_entropy": losses.sum() / least}
        if self._z_loss:
            parts["z_loss"] = self._z_loss * squares.sum() / least
        return Outcome(parts, {}, losses.detach().view(targets.shape), num_targets)

    def predict(self, inputs: Tensors) -> dict[str, Tensor]:
        """Return the most probable next token of each token, `prediction`, and its `probability`, (B, L) each."""
        hidden = self._hidden(inputs)
        highest = [widened(logits).softmax(-1).max(-1) for logits in map(self._logits, self._parts(hidden))]
        shape = hidden.shape[:-1]
        return {
            "prediction": torch.cat([indices for _, indices in highest]).view(shape),
            "probability": torch.cat([values for values, _ in highest]).view(shape),
        }

    def _token_losses(self, inputs: Tensors, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the cross entropy and the squared log of the denominator of each target, (B L,) each."""
        hidden = self._hidden(inputs)
        if hidden.shape[:-1] != targets.shape:
            shape, of_targets = list(hidden.shape[1:]), list(targets.shape[1:])
            message = f"gives outputs of shape {shape} for a sample with targets of shape {of_targets}"
            remedy = "task=language_modeling needs logits (B, L, V) for (B, L)"
            raise ConfigError("model", message, remedy=remedy)
        parts = self._parts(hidden)
        pairs = list(zip(parts, targets.flatten().chunk(len(parts)), strict=True))
        if len(pairs) == 1 or not torch.is_grad_enabled():
            results = [self._assess(*pair) for pair in pairs]
        else:
            results = [cast("Any", checkpoint(self._assess, *pair, use_reentrant=False)) for pair in pairs]
        losses, squares = zip(*results, strict=True)
        return torch.cat(losses), torch.cat(squares)

    def _assess(self, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        logits = widened(self._logits(hidden))
        losses = F.cross_entropy(logits, targets, ignore_index=self._ignored, reduction="none")
        if not self._z_loss:
            return losses, torch.zeros_like(losses)
        return losses, logits.logsumexp(-1).square() * (targets != self._ignored)

    def _hidden(self, inputs: Tensors) -> Tensor:
        """Return the input of `_logits`: hidden states, or the logits of a model without a separate readout."""
        model: Any = self.model
        return model(inputs) if self._vocab_size is None else model(inputs, readout=False)

    def _logits(self, hidden: Tensor) -> Tensor:
        model: Any = self.model
        return hidden if self._vocab_size is None else model.logits(hidden)

    def _parts(self, hidden: Tensor) -> tuple[Tensor, ...]:
        """Return the hidden states of parts of the tokens, (n, width) each, whose logits fit into the memory."""
        tokens = hidden.flatten(0, -2)
        num_logits = len(tokens) * (self._vocab_size or 0)
        return tokens.chunk(max(math.ceil(num_logits / self._max_logits), 1))


def _counts(targets: Tensor, ignored: int) -> Tensor:
    """Return which targets count: negative ones, as behind the end of a document, never do."""
    return (targets >= 0) & (targets != ignored)


class Perplexity(MetricOfSums):
    """The exponential of the mean cross entropy of the tokens that count.

    Args:
        ignored: targets of this number do not count.
    """

    def __init__(self, ignored: int) -> None:
        super().__init__()
        self._ignored = ignored

    def sums(self, values: Tensor, targets: Tensor) -> Tensor:
        return torch.stack([values.double().sum(), _counts(targets, self._ignored).sum()])

    def value(self, sums: Tensor) -> Tensor:
        return (sums[0] / sums[1]).exp()


class BitsPerByte(MetricOfSums):
    """The sum of the cross entropies in bits over the number of bytes of the tokens.

    Args:
        token_bytes: the number of bytes of each token. Tokens of 0 bytes, which are no text, do not count.
        ignored: targets of this number do not count.
    """

    token_bytes: Tensor

    def __init__(self, token_bytes: Any, ignored: int) -> None:
        super().__init__()
        self._ignored = ignored
        self.register_buffer("token_bytes", torch.as_tensor(token_bytes).long(), persistent=False)

    def sums(self, values: Tensor, targets: Tensor) -> Tensor:
        num_bytes = self.token_bytes[targets.clamp(min=0)] * _counts(targets, self._ignored)
        return torch.stack([(values.double() * (num_bytes > 0)).sum(), num_bytes.sum()])

    def value(self, sums: Tensor) -> Tensor:
        return sums[0] / math.log(2) / sums[1]


class UnigramEntropy(MetricOfSums):
    """The entropy of the frequencies of the tokens that count, in nats."""

    def __init__(self, vocab_size: int, ignored: int) -> None:
        super().__init__()
        self._vocab_size, self._ignored = vocab_size, ignored

    def sums(self, values: Tensor, targets: Tensor) -> Tensor:
        counts = torch.zeros(self._vocab_size + 1, dtype=torch.int64, device=targets.device)
        tokens = targets.where(_counts(targets, self._ignored), self._vocab_size).flatten()
        return counts.scatter_add_(0, tokens, torch.ones_like(tokens))[:-1]

    def value(self, sums: Tensor) -> Tensor:
        return torch.special.entr(sums / sums.sum()).sum()


@torch.no_grad()
def generate(
    model: nn.Module,
    tokens: Tensor,
    num_tokens: int,
    *,
    max_context: int,
    temperature: float,
    top_k: int | None,
    generator: torch.Generator,
) -> Tensor:
    """Return a sequence of tokens, (L,) int64, with `num_tokens` more that the model predicts.

    Each token is drawn from the softmax of `logits / temperature` over the `top_k` most probable ones (Fan et al.,
    2018). The model reads at most the last `max_context` tokens, without a cache of its keys and values.

    Args:
        model: `tokens (B, L) -> logits (B, L, V)`.
        tokens: at least one, on the device of the model.
        temperature: 0 takes the most probable token.
        top_k: None: all tokens.
        generator: draws the tokens; on the host.
    """
    for _ in range(num_tokens):
        if isinstance(model, SeparateReadout):  # pyrefly: ignore[unsafe-overlap]  # a Module may have any attribute
            logits = model.logits(model(tokens[None, -max_context:], readout=False)[0, -1])
        else:
            logits = model(tokens[None, -max_context:])[0, -1]
        logits = logits.float().cpu()
        if temperature == 0:
            chosen = logits.argmax(keepdim=True)
        else:
            best, indices = logits.topk(min(top_k or len(logits), len(logits)))
            chosen = indices[(best / temperature).softmax(-1).multinomial(1, generator=generator)]
        tokens = torch.cat([tokens, chosen.to(tokens.device)])
    return tokens


class TextSamples:
    """Lets the model continue each prompt after each evaluation, and logs the texts as `sample_0`, `sample_1` ...

    The texts are a function of the weights, the seed of the run and the number of updates. The model is eager and in
    evaluation mode, in the precision of the run.

    Args:
        prompts: the beginnings of the texts.
        num_tokens: how many tokens continue each text.
        temperature: temperature of the softmax from which tokens are drawn; 0: the most probable token.
        top_k: draw from this many most probable tokens only; None: from all.

    Raises:
        ConfigError: an argument is out of its range.
    """

    def __init__(
        self,
        *,
        prompts: Sequence[str],
        num_tokens: PositiveInt,
        temperature: NotNegative,
        top_k: PositiveInt | None,
    ) -> None:
        if isinstance(prompts, str) or not prompts or not all(prompts):
            raise ConfigError("prompts", f"needs the beginnings of texts, such as ['The '], not {prompts!r}")
        self._prompts, self._num_tokens = list(prompts), num_tokens
        self._temperature, self._top_k = temperature, top_k

    def check(self, plan: Plan) -> None:
        """Check that the data have a tokenizer, and that the run is evaluated.

        Raises:
            ConfigError: they have none, or it is not.
        """
        if getattr(plan.data, "vocabulary", None) is None:
            message = "text_samples needs data that turn text into tokens and back"
            remedy = "write them by hydrant tokenize, with their tokens.json, or leave the hook out: hook=[]"
            raise ConfigError("data", message, remedy=remedy)
        plan.check_evaluates("texts are made after evaluations")

    def on_evaluation(self, trainer: Trainer, row: Mapping[str, float]) -> None:
        """Make the texts and log them. All ranks make the same ones."""
        del row
        plan: Any = trainer.plan
        with eager_evaluation(trainer), plan.parallel.gathered(trainer.task):
            for number, prompt in enumerate(self._prompts):
                seed = seeding.hash_of(plan.spec.seed, seeding.TEXTS, trainer.state.num_updates, number)
                tokens = generate(
                    trainer.model,
                    torch.tensor(plan.data.encode(prompt), device=plan.world.device),
                    self._num_tokens,
                    max_context=plan.data.sequence_length,
                    temperature=self._temperature,
                    top_k=self._top_k,
                    generator=torch.Generator().manual_seed(seed),
                )
                trainer.log.text(f"sample_{number}", plan.data.decode(tokens.tolist()))
