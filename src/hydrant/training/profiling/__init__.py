"""The cost of a run: parameters and FLOPs of the model, time and memory of its updates."""
