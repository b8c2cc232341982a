"""Training on several ranks: the process group, DDP, FSDP2, and the watchdog that finds a rank that hangs."""
