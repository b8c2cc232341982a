"""Units of a sweep on a Ray cluster."""
