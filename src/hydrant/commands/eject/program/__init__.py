"""The program that `hydrant eject` cuts to a config: real code, so that it is linted and typed. Nothing runs it here.

Names in capitals are the constants of the ejected file, and also decide which branches it has. Every module becomes a
section. Names from `settings` get their values from the config; names from `parts` are written for it.
"""
