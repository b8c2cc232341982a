"""The league of optimizers: its sweeps, its results and its page."""
