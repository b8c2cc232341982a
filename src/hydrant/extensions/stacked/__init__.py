"""Several runs of the same program as one: their weights are stacked, and torch maps each update over the lanes."""
