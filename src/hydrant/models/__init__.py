"""Models: plain `nn.Module`s, independent of data sets, tasks and configs."""

from hydrant.models.gpt import GPT
from hydrant.models.small import MLP, AllReduceNet, ConvNet, DeepLinear
from hydrant.models.timm import timm_model

__all__ = [
    "GPT",
    "MLP",
    "AllReduceNet",
    "ConvNet",
    "DeepLinear",
    "timm_model",
]
