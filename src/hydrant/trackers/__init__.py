"""Where a run's numbers go. The record in the run folder is always written; the others are sinks beside it."""
