"""The uses of random numbers. Each has a number of its own, so that it draws others than the rest."""

from __future__ import annotations

MODEL = 1
ORDER = 2
UPDATE = 3
SAMPLE = 4
SYNTHETIC = 5
MIXING = 6
