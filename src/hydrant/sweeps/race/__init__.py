"""A race: paired seeds of two settings until the better one is known, or the budget is spent."""
