"""Random numbers of a GPU of the stub: a function of the CUDA generator's seed and offset, as on CUDA.

They are neither CUDA's numbers nor the CPU's.
"""

from __future__ import annotations

import torch

_OFFSET_OF_A_CALL = 4  # CUDA's offsets are multiples of 4
_STRIDE = 1_000_003


def default_generator(device: torch.device) -> torch.Generator:
    """Return the generator that a GPU uses if a call names none."""
    return torch.cuda.default_generators[device.index]


def host_generator(generator: torch.Generator) -> torch.Generator:
    """Return a generator of the CPU for one call, and advance the CUDA generator."""
    seed, offset = generator.initial_seed(), generator.get_offset()
    generator.set_offset(offset + _OFFSET_OF_A_CALL)
    made = torch.Generator()
    made.manual_seed((seed * _STRIDE + offset) % 2**63)
    return made
