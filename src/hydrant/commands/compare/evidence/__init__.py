"""The statistics of the verdicts, as pure functions of numbers. They know neither runs nor how results are shown."""
