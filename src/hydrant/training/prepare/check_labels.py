"""Whether the classes of training samples that are known before these are read are those that they have."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hydrant.clock import Steps
from hydrant.data import Source, StreamSpec
from hydrant.data.labels import labels_of
from hydrant.errors import ConfigError

_NUM_READ = 64


def check_labels(train: Source) -> None:
    """Read some samples from all over a source, and check that their targets are its labels, which balance the classes.

    Raises:
        ConfigError: one has another target, for example by a `target_transform`.
    """
    labels = labels_of(train)
    if labels is None:
        return
    places = np.unique(np.linspace(0, len(labels) - 1, _NUM_READ).astype(int)).tolist()
    host = StreamSpec(0, Steps.constant(1), 1, 0, 1, torch.device("cpu"))
    targets = [batch.targets for batch in train.subset(places).batches(host, 1)]
    if len(targets) < len(places):  # damaged samples are left out
        return
    for place, target in zip(places, targets, strict=True):
        if isinstance(target, Tensor) and target.numel() == 1 and target.item() != labels[place]:
            counted = f"balanced counts {labels[place]} for training sample {place}, whose target is {target.item()}"
            reason = "the attribute targets of the data set holds other numbers than its samples have"
            remedy = "give a number for each class"
            raise ConfigError("task.class_weights", f"{counted}: {reason}", remedy=remedy)
