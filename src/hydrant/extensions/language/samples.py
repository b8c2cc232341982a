"""A hook that lets a language model continue texts."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from hydrant import seeding
from hydrant.errors import ConfigError
from hydrant.extensions.language.language_modeling import generate
from hydrant.files.plain_values import NotNegative, PositiveInt
from hydrant.training.reports import eager_evaluation
from hydrant.training.trainer import Plan, Trainer


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
