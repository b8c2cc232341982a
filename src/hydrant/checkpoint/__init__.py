"""Checkpoints: folders that are whole or absent, from which nothing is ever unpickled.

    checkpoints/update_00001000/model.safetensors      the bare model: names without prefixes
    checkpoints/update_00001000/ema.safetensors        the same of the averaged model, where there is one
    checkpoints/update_00001000/training.safetensors   the tensors of optimizers, meter and host random state
    checkpoints/update_00001000/training.json          everything else: counters, hyperparameters, loss scaler
    checkpoints/update_00001000/manifest.json          size and SHA-256 of every file
    checkpoints/last, checkpoints/best                 links to such folders

What is spread over ranks has a file a rank, `model-00001-of-00004.safetensors`, and is read on any number of
ranks: torch.distributed.checkpoint plans who writes and reads what. A folder is written aside, flushed to disk and
renamed by rank 0 after all have written, so a reader sees all of it or nothing. Everything else that varies over a
run is a function of `num_updates` and needs no saving.
"""

from hydrant.checkpoint.folder import Retention as Retention
from hydrant.checkpoint.folder import find as find
from hydrant.checkpoint.folder import newest as newest
from hydrant.checkpoint.folder import newest_whole as newest_whole
from hydrant.checkpoint.manifest import damage as damage
from hydrant.checkpoint.saving import Checkpoints as Checkpoints
from hydrant.checkpoint.state import Checkpoint as Checkpoint
from hydrant.checkpoint.state import parts as parts
from hydrant.checkpoint.state import plain_state as plain_state
from hydrant.checkpoint.state import read_into as read_into
from hydrant.checkpoint.state import read_state as read_state
from hydrant.checkpoint.weights import Weights as Weights
from hydrant.checkpoint.weights import find_weights as find_weights
from hydrant.checkpoint.weights import misfit as misfit
