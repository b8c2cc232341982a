"""`hydrant compare`: runs side by side, in a table, in groups over seeds, and on a page. Does not import torch."""

from typing import TYPE_CHECKING

from hydrant.commands.registry import Command
from hydrant.imports import lazy_exports

if TYPE_CHECKING:
    from hydrant.extensions.compare.interface import Comparison as Comparison
    from hydrant.extensions.compare.interface import compare as compare
    from hydrant.extensions.compare.interface import load_runs as load_runs

__getattr__, __dir__ = lazy_exports(__name__)

COMMAND = Command("compare", "compare runs and sweeps: groups over seeds, the winner, a page",
                  answers=(f"{__name__}.serialize:Compare",), section="Look", runs_own_code=False)  # fmt: skip

SERVICES = "hydrant.run_services"
"""The entry points of modules that read runs named `<name>:...` (`read_runs`), and save comparisons with `--<name>`
(`view_saver`)."""
