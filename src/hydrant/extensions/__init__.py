"""Capabilities that the core does without: each folder is one, with its commands, options and texts.

pyproject.toml names them by entry points, as a stranger's would. docs/reference/extensions.md explains them.
"""
