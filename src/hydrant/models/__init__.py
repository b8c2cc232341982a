"""Models: plain `nn.Module`s from `(input_shape, num_classes)`; they know no data set, task or config."""

from hydrant.models.convnet import ConvNet
from hydrant.models.mlp import MLP
from hydrant.models.timm import timm_model

__all__ = ["MLP", "ConvNet", "timm_model"]
