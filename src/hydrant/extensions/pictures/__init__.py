"""Pictures of runs and sweeps, by matplotlib."""
