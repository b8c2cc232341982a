"""Language models: tokens in files, a GPT, its task, and samples of its texts."""

from typing import TYPE_CHECKING

from hydrant.commands.registry import Command
from hydrant.imports import lazy_exports

if TYPE_CHECKING:
    from hydrant.extensions.language.gpt import GPT as GPT
    from hydrant.extensions.language.language_modeling import LanguageModeling as LanguageModeling
    from hydrant.extensions.language.language_modeling import TextSamples as TextSamples
    from hydrant.extensions.language.token_data import TokenData as TokenData
    from hydrant.extensions.language.token_data import tokens as tokens

__getattr__, __dir__ = lazy_exports(__name__)

COMMAND = Command("tokenize", "make the tokens of a language model's data from text", writes=True,
                  main=f"{__name__}.tokenizers:main", runs_own_code=False)  # fmt: skip
