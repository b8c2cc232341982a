"""torch.compile of the task and of the optimizer steps, and the report of what it compiled."""
