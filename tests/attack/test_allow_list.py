"""Bypasses of the allow-list: no config calls what loads a file, an address or code, in the installed versions.

`.ci/run lowest` also runs this file with the lowest versions that pyproject.toml allows.
"""

import importlib
import inspect
import itertools
import pkgutil
from collections.abc import Callable
from typing import Any

from allow_list import RISKY, accepted_risks, content, is_accepted, module_names
from attacks import Trials

from hydrant.installation import named_packages

EXTENSIONS = sorted(n.removeprefix("hydrant.") for n in named_packages("hydrant.parts") if "hydrant." in n)
PACKAGES = ("data", "models", "optimizers", "schedules", "tasks", "trackers", "training", *EXTENSIONS)
OWN_ARGUMENTS = {
    "root", "train_dir", "val_dir", "test_dir", "path",  # are read: docs/reference/security.md lists them
    "cache_dir",  # of compiled code: listed there
    "executor",  # a node of hydra.launcher, checked as it is
    "weights",  # of classes
    "backend",  # one of those that torch has registered
    "log_checkpoints", "save_code",  # what W&B receives: listed there
    "tracking_uri",  # of MLflow: the user must name it
    "download", "pretrained", "profile_memory", "evaluation", "cpu_offload",  # true or false
    "activation_checkpointing",  # true or false
    "names_are_files", "is_sample_per_file",  # true or false
    "eval_transform", "files",  # objects
    "class_weights",  # numbers
    "name", "modules",  # of timm's lists, or of the run; modules of the task
}  # fmt: skip
"""The arguments of Hydrant's parts that may name a file, an address, code or a command."""

WAYS = ("torch", "torch.nn.modules.module.torch", "torchmetrics.metric.torch", "timm.models.vision_transformer.torch",
        "torchvision.models.resnet.torch", "hydrant.training.loop.torch")  # fmt: skip
GOALS = ("hub.load", "load", "jit.load", "utils.cpp_extension.load_inline", "utils.collect_env.run", "ops.load_library",
         "serialization.pickle.loads", "serialization.os.system", "package.PackageImporter", "nn.modules.os.system",
         "classes.load_library", "distributed.run.main", "compile", "nn.Module.load_state_dict",
         "nn.Embedding.from_pretrained", "nn.Module.register_forward_hook")  # fmt: skip
NESTED: tuple[Callable[[Any], Any], ...] = (
    lambda node: node,
    lambda node: {"_target_": "torch.nn.Sequential", "_args_": [node]},
    lambda node: {"a": [{"b": node}]},
    lambda node: {"_target_": "torch.nn.ModuleDict", "modules": {"x": [node]}, "_recursive_": False},
    lambda node: {"_target_": "hydrant.models.timm_model", "kwargs": {"x": node}, "_partial_": True},
)


def test_no_public_callable_of_a_library_loads_what_a_config_names(trials: Trials) -> None:
    found = [risk for module_name in trials.of(module_names()) for risk in accepted_risks(module_name)]
    assert not found, "\n".join(found)


def test_no_way_through_a_library_leads_to_code(trials: Trials) -> None:
    found = list[str]()
    for way, goal, nested in trials.of(itertools.product(WAYS, GOALS, NESTED)):
        node = nested({"_target_": f"{way}.{goal}", "_partial_": True})
        if is_accepted("torch.nn.ModuleList", {"modules": [node]}):
            found.append(str(node))
    assert not found, "\n".join(found)
    assert all(is_accepted("torch.nn.ModuleList", {"modules": [nested({"x": 1})]}) for nested in NESTED)


def test_no_method_of_an_own_class_is_a_part() -> None:
    """A tracker, for example, has methods that send files which they get as an argument."""
    packages = [importlib.import_module(f"hydrant.{name}") for name in PACKAGES]
    below = [
        m.name for p in packages for m in pkgutil.walk_packages(getattr(p, "__path__", ()), f"{p.__name__}.")
    ]
    callables = [(path, c) for name in below for path, c in content(name) if callable(c)]
    methods = [path for path, c in callables if "." in getattr(c, "__qualname__", "")]
    assert len(methods) > 100
    assert not [path for path in methods if is_accepted(path, {})]


def test_all_arguments_of_own_parts_that_may_name_files_are_known() -> None:
    found = set[str]()
    for name in PACKAGES:
        package = importlib.import_module(f"hydrant.{name}")
        for part in dir(package):
            if is_accepted(f"hydrant.{name}.{part}", {}):
                parameters = inspect.signature(getattr(package, part)).parameters
                found |= {argument for argument in parameters if RISKY.search(argument)}
    assert found <= OWN_ARGUMENTS
    assert found >= {"path", "cache_dir"}
