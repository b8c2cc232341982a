"""Hydra configs: compose, check, instantiate. Imports neither torch nor W&B."""
