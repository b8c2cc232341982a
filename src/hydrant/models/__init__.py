"""Models: plain `nn.Module`s, independent of data sets, tasks and configs."""

from hydrant.models.all_reduce_net import AllReduceNet
from hydrant.models.convnet import ConvNet
from hydrant.models.gpt import GPT
from hydrant.models.linear import DeepLinear
from hydrant.models.mlp import MLP
from hydrant.models.timm import timm_model

__all__ = [
    "GPT",
    "MLP",
    "AllReduceNet",
    "ConvNet",
    "DeepLinear",
    "timm_model",
]
