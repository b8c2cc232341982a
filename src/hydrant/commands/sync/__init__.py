"""`hydrant sync`: upload offline W&B runs. Does not import torch."""

from hydrant.commands.sync.command import main as main
