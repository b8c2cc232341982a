"""`python -m hydrant`: the command `hydrant` of the environment of this Python."""

from hydrant.cli import run

if __name__ == "__main__":
    run()
