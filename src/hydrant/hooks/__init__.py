"""Hooks: freezing weights, ending a run early, diagnostics of updates, samples of a model.

A new hook needs no entry here: its `_target_` is the path of its class. The names below are only shorter paths.
docs/guides/hooks.md describes the methods of a hook. Importing this package imports no torch.
"""

from typing import TYPE_CHECKING

from hydrant.imports import lazy_exports

if TYPE_CHECKING:
    from hydrant.hooks.freeze import Freeze as Freeze
    from hydrant.hooks.observe import Diagnostics as Diagnostics
    from hydrant.hooks.observe import Samples as Samples
    from hydrant.hooks.stop import LrFinder as LrFinder
    from hydrant.hooks.stop import StopAt as StopAt
    from hydrant.hooks.stop import StopIf as StopIf

__getattr__, __dir__ = lazy_exports(__name__)
