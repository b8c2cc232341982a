"""Models: plain `nn.Module`s, independent of data sets, tasks and configs."""

from hydrant.models.small import MLP as MLP
from hydrant.models.small import AllReduceNet as AllReduceNet
from hydrant.models.small import ConvNet as ConvNet
from hydrant.models.small import DeepLinear as DeepLinear
from hydrant.models.small import timm_model as timm_model
