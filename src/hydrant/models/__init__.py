"""Models: plain `nn.Module`s, independent of data sets, tasks and configs."""

from hydrant.models.airbench import AirbenchNet
from hydrant.models.all_reduce_net import AllReduceNet
from hydrant.models.convnet import ConvNet
from hydrant.models.gan import Discriminator, Generator
from hydrant.models.gpt import GPT
from hydrant.models.linear import DeepLinear
from hydrant.models.mlp import MLP
from hydrant.models.signals import ConvNet1d, GRUClassifier
from hydrant.models.timm import timm_model
from hydrant.models.track3 import Track3GPT

__all__ = [
    "GPT",
    "MLP",
    "AirbenchNet",
    "AllReduceNet",
    "ConvNet",
    "ConvNet1d",
    "DeepLinear",
    "Discriminator",
    "GRUClassifier",
    "Generator",
    "Track3GPT",
    "timm_model",
]
