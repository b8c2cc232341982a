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
