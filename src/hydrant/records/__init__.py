"""Records: the files of a run folder and the answers of the commands, each defined once.

What is read, what JSON Schemas allow and what the tables of the docs say follow from the fields of these classes, their
types, and the `Attributes` of their docstrings.
"""
