"""Hooks: freezing weights, ending a run early, diagnostics of updates, samples of a model.

A new hook needs no entry here: its `_target_` is the path of its class. The names below are only shorter paths.
docs/guides/hooks.md describes the methods of a hook. Importing this package imports no torch.
"""

from typing import TYPE_CHECKING

from hydrant.imports.lazy import lazy_exports

if TYPE_CHECKING:
    from hydrant.hooks.diagnostics import Diagnostics as Diagnostics
    from hydrant.hooks.freeze import Freeze as Freeze
    from hydrant.hooks.gradient_noise import GradientNoise as GradientNoise
    from hydrant.hooks.lookahead import Lookahead as Lookahead
    from hydrant.hooks.lr_finder import LrFinder as LrFinder
    from hydrant.hooks.samples import Samples as Samples
    from hydrant.hooks.sharpness import Sharpness as Sharpness
    from hydrant.hooks.stop_at import StopAt as StopAt
    from hydrant.hooks.stop_if import StopIf as StopIf
    from hydrant.hooks.text_samples import TextSamples as TextSamples

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "Diagnostics": "hydrant.hooks.diagnostics",
        "Freeze": "hydrant.hooks.freeze",
        "GradientNoise": "hydrant.hooks.gradient_noise",
        "Lookahead": "hydrant.hooks.lookahead",
        "LrFinder": "hydrant.hooks.lr_finder",
        "Samples": "hydrant.hooks.samples",
        "Sharpness": "hydrant.hooks.sharpness",
        "StopAt": "hydrant.hooks.stop_at",
        "StopIf": "hydrant.hooks.stop_if",
        "TextSamples": "hydrant.hooks.text_samples",
    },
)
