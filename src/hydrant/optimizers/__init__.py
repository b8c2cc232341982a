"""What a run does with optimizers, and averages of its weights."""

from hydrant.optimizers.ema import Ema as Ema
from hydrant.optimizers.ema import NoAveraging as NoAveraging
from hydrant.optimizers.ema import TailAverage as TailAverage
