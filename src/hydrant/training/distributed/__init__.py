"""Training on several ranks: the process group, DDP, and the watchdog that finds a rank that hangs."""
