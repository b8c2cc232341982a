"""Checkpoints: folders that are complete or absent, in files from which nothing is unpickled.

    checkpoints/update_00001000/model.safetensors      the weights of the model, by names without prefixes
    checkpoints/update_00001000/ema.safetensors        the averaged weights, with averaging=ema
    checkpoints/update_00001000/training.safetensors   the tensors of optimizers, meter and host random state
    checkpoints/update_00001000/training.json          everything else: counters, hyperparameters, loss scaler
    checkpoints/update_00001000/manifest.json          size and SHA-256 of every file
    checkpoints/last, checkpoints/best                 links to such folders

Sharded tensors are in one file per rank, `model-00001-of-00004.safetensors`, and can be read on any number of ranks:
torch.distributed.checkpoint plans who writes and reads what. A folder is written under a temporary name, flushed to
disk, and renamed by rank 0 after all ranks have written, so a reader sees all of it or nothing. Everything else that
varies over a run is a function of `num_updates` and is not saved.

Importing this package, `folder` and `manifest` imports no torch.
"""

from typing import TYPE_CHECKING

from hydrant.config.lazy_import import lazy_exports

if TYPE_CHECKING:
    from hydrant.training.checkpoint.content import Checkpoint as Checkpoint
    from hydrant.training.checkpoint.content import plain_state as plain_state
    from hydrant.training.checkpoint.content import read_into as read_into
    from hydrant.training.checkpoint.content import read_state as read_state
    from hydrant.training.checkpoint.content import weight_parts as weight_parts
    from hydrant.training.checkpoint.folder import Retention as Retention
    from hydrant.training.checkpoint.folder import find_checkpoint as find_checkpoint
    from hydrant.training.checkpoint.folder import newest_checkpoint as newest_checkpoint
    from hydrant.training.checkpoint.folder import newest_undamaged as newest_undamaged
    from hydrant.training.checkpoint.manager import CheckpointManager as CheckpointManager
    from hydrant.training.checkpoint.manifest import find_damage as find_damage
    from hydrant.training.checkpoint.weights import Weights as Weights
    from hydrant.training.checkpoint.weights import describe_misfits as describe_misfits
    from hydrant.training.checkpoint.weights import find_weights as find_weights

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "Checkpoint": "hydrant.training.checkpoint.content",
        "CheckpointManager": "hydrant.training.checkpoint.manager",
        "Retention": "hydrant.training.checkpoint.folder",
        "Weights": "hydrant.training.checkpoint.weights",
        "describe_misfits": "hydrant.training.checkpoint.weights",
        "find_checkpoint": "hydrant.training.checkpoint.folder",
        "find_damage": "hydrant.training.checkpoint.manifest",
        "find_weights": "hydrant.training.checkpoint.weights",
        "newest_checkpoint": "hydrant.training.checkpoint.folder",
        "newest_undamaged": "hydrant.training.checkpoint.folder",
        "plain_state": "hydrant.training.checkpoint.content",
        "read_into": "hydrant.training.checkpoint.content",
        "read_state": "hydrant.training.checkpoint.content",
        "weight_parts": "hydrant.training.checkpoint.content",
    },
)
