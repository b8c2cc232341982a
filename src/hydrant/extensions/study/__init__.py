"""A study: which of several settings is best? Tuned equally, then tested with fresh seeds, until the answer is known.

What a study does next is a function of its protocol and of the results on disk. So the same command continues it after
a kill, and ends with the same answer.

| module | what it does |
| --- | --- |
| `protocol.py` | what is fixed before the first run: contenders, tuned values, the rule of the test; in words too |
| `verdict.py` | the test of paired differences after every pair; who is beaten, when it is decided, and the sentence |
| `trials.py` | the jobs, trained within the budget of runs, updates and seconds, and their results |
| `rounds.py` | the tuning, and the rounds of fresh seeds |
| `sweeper.py` | the command, and the order of all this: a sweep like any other, which `status` and `compare` read |
| `records.py`, `report.py` | the types of study.json; what writes it and study.md |
"""

from hydrant.commands.registry import Command

COMMAND = Command("study",
                  "tune settings equally, then test them with fresh seeds until the best is known",
                  main=f"{__name__}.sweeper:main",
                  answers=(f"{__name__}.records:Study", f"{__name__}.records:StudyFile"),
                  groups="(?!hydra/sweeper).*", writes=True)  # fmt: skip
