"""Random numbers."""

from __future__ import annotations

# Each use of random numbers has a number of its own, so that it draws others than the rest.
MODEL = 1
ORDER = 2
UPDATE = 3
SAMPLE = 4
SYNTHETIC = 5
MIXING = 6
