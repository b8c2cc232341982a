"""A search with Optuna: the search space in Hydra's syntax, the trials on disk, and the loop that runs them."""
