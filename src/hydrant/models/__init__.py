"""Models: plain `nn.Module`s, independent of data sets, tasks and configs."""

from hydrant.models.airbench import AirbenchNet as AirbenchNet
from hydrant.models.all_reduce_net import AllReduceNet as AllReduceNet
from hydrant.models.convnet import ConvNet as ConvNet
from hydrant.models.gan import Discriminator as Discriminator
from hydrant.models.gan import Generator as Generator
from hydrant.models.gpt import GPT as GPT
from hydrant.models.linear import DeepLinear as DeepLinear
from hydrant.models.mlp import MLP as MLP
from hydrant.models.signals import ConvNet1d as ConvNet1d
from hydrant.models.signals import GRUClassifier as GRUClassifier
from hydrant.models.timm import timm_model as timm_model
from hydrant.models.track3 import Track3GPT as Track3GPT
