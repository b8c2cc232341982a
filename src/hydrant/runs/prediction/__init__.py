"""Predictions of a saved run: its inputs, the predictions so far, and the files that hold them in the end."""
