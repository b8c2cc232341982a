"""Hydrant: controlled comparisons of optimizers, schedules, precision and compile settings on plain PyTorch."""
