"""A model that runs out of memory above a number of samples, and the overrides of a run with it."""

MODULE = '''
import torch
from torch import nn

TRIED = []

class Limited(nn.Module):
    """Takes a limited number of samples at once, in training and in evaluation; has statistics and dropout."""
    def __init__(self, *, input_shape, num_classes, train_limit, eval_limit=1000, states=0):
        super().__init__()
        self.limits = {True: train_limit, False: eval_limit}
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Dropout(0.1),
                                    nn.Linear(8, num_classes))

    def forward(self, inputs):
        if not torch.compiler.is_compiling():
            TRIED.append(len(inputs))
        if len(inputs) > self.limits[self.training] and not inputs.is_meta:
            raise torch.OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 8.00 GiB.")
        return self.layers(inputs)
'''

LIMITED_RUN = ("tracker=local", "allow_targets=[limited]", "model._target_=limited.Limited", "~model.hidden",
               "~model.dropout", "global_batch_size=24", "eval_batch_size=32", "duration=2", "log_every=1",
               "eval_every=2", "save_every=1")  # fmt: skip
