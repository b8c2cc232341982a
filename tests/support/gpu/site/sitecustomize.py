"""Python imports this file when it starts with the stub: once torch is imported, the stub prepares it."""

import importlib.abc
import importlib.util
import sys
from pathlib import Path


def _prepare():
    folder = Path(__file__).parents[1]
    # Without tests/support on the path, whose other modules a program does not expect.
    if "gpu" not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            "gpu", folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        sys.modules["gpu"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["gpu"])
    from gpu import prepare

    prepare.prepare()


class _AfterTorch(importlib.abc.MetaPathFinder):
    """Calls `_prepare` when the first import of torch ends."""

    _is_looking = False

    def find_spec(self, name, path, target=None):
        if name != "torch" or self._is_looking:
            return None
        self._is_looking = True
        spec = importlib.util.find_spec("torch")
        self._is_looking = False
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            _prepare()

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, _AfterTorch())
