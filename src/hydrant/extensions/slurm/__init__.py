"""Units of a sweep under SLURM."""
