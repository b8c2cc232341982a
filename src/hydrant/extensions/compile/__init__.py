"""torch.compile of the task and of the optimizer steps; `hydrant diagnose` and `hydrant backends`."""

from typing import TYPE_CHECKING

from hydrant.commands.registry import ONE_RUN, Command
from hydrant.imports import lazy_exports

if TYPE_CHECKING:
    from hydrant.extensions.compile.compiled_task import Compile as Compile

__getattr__, __dir__ = lazy_exports(__name__)

BACKENDS = Command("backends", "list the backends of torch.compile", main=f"{__name__}.command:backends",
                   runs_own_code=False)  # fmt: skip
DIAGNOSE = Command("diagnose", "explain what torch.compile does with a config", groups=ONE_RUN)
