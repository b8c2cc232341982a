"""The trainings that are compared, each a module that is run in a process of its own.

They train the same network on the same batches with the same optimizer. A module makes its loop the way its
documentation shows as the fast one, with nothing that it could do without; `features` adds what it has of them.
"""
