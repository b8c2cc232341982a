"""A search by Optuna: the space that Hydra's words span, the trials on disk, and the loop that runs them."""
