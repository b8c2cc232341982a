"""Hydra configs: compose, check, instantiate. Imports neither torch nor W&B."""

DEFAULT_METRIC = "val/loss"
"""The metric of the best checkpoint of a task that declares no `best_metric`."""
