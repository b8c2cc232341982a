"""Hydrant from Python: what `import hydrant` offers. Importing this package imports neither torch nor Hydra."""
