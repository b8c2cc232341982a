"""The configuration: its schema, how it is composed, checked and compared.

Importing it brings in neither torch nor wandb.
"""

from hydrant.config.check import check
from hydrant.config.compose import ENTRY, combinations, compose, register, run_folder, uncompiled
from hydrant.config.plain import choices_of, differences, flatten, record_of
from hydrant.options import conf_dir

__all__ = [
    "ENTRY",
    "check",
    "choices_of",
    "combinations",
    "compose",
    "conf_dir",
    "differences",
    "flatten",
    "record_of",
    "register",
    "run_folder",
    "uncompiled",
]
