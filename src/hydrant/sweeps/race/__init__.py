"""A race: paired seeds of two settings until one is known to be better, or the budget is spent."""
