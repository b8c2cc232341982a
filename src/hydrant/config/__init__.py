"""Hydra configs: compose, check, instantiate, explain. Imports neither torch nor W&B."""
