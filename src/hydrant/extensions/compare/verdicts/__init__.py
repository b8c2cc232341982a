"""The verdicts of a comparison: what its results show beyond the means, and what they do not show."""
