"""Samples of a model: pictures and texts of a user's function, and texts that a language model continues."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from hydrant import seeding
from hydrant.errors import ConfigError
from hydrant.files.plain_values import NotNegative, PositiveInt
from hydrant.tasks.language_modeling import generate
from hydrant.training.evaluation import eager_evaluation
from hydrant.training.trainer import Plan, Trainer


class Samples:
    """Calls `function(model)` after each evaluation, and logs the pictures and texts that it returns.

    The model is eager and as in the evaluation: in evaluation mode, without gradients, in the precision of the run. The
    random numbers of torch are the same each time, so the samples of two updates can be compared.

    Args:
        function: called with the model; returns pictures and texts by name. A picture is what `trainer.log.picture`
            takes.
    """

    def __init__(self, *, function: Callable[[nn.Module], Mapping[str, Any]]) -> None:
        self._function = function

    def check(self, plan: Plan) -> None:
        """Check that the run is evaluated.

        Raises:
            ConfigError: it is not.
        """
        plan.check_evaluates("samples are made after evaluations")

    def on_evaluation(self, trainer: Trainer, row: Mapping[str, float]) -> None:
        """Make the samples and log them."""
        del row
        plan = trainer.plan
        seeding.seed_evaluation(plan.world.rank, plan.world.device)
        with eager_evaluation(trainer):
            samples = self._function(trainer.model)
        for name, sample in samples.items():
            (trainer.log.text if isinstance(sample, str) else trainer.log.picture)(name, sample)


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
