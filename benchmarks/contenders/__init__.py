"""The trainings that are compared. Each is a module that runs in a separate process.

They train the same network on the same batches with the same optimizer. Each loop is the one that the library's
documentation shows as fast, without anything optional. The setting `features` adds the features that the library has.
"""
