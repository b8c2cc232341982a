"""Registers the launchers with Hydra, which searches the packages in hydra_plugins for them."""

from hydrant.sweeps.executors.local import Local
from hydrant.sweeps.executors.ray import Ray
from hydrant.sweeps.executors.slurm import Slurm
from hydrant.sweeps.launcher import ExecutorLauncher


class LocalLauncher(ExecutorLauncher):
    executor_class = Local


class RayLauncher(ExecutorLauncher):
    executor_class = Ray


class SlurmLauncher(ExecutorLauncher):
    executor_class = Slurm
