"""The trainings that are compared. Each is a module that runs in a separate process.

They train the same network on the same batches with the same optimizer. Each uses the loop that the documentation of
its library recommends for speed, without optional features. The setting `features` adds those that the library has.
"""
