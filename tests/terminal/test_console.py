"""What a run prints is lost at most; it never ends the run."""

import os
import subprocess
import sys
import time

import pytest

LINE = "x" * 99
PROGRAM = f"""
import os
from hydrant.terminal.console import standard_streams

os.set_blocking(1, False)
with standard_streams():
    for _ in range(20_000):
        print("{LINE}")
"""


@pytest.mark.slow
def test_a_slow_reader_of_a_non_blocking_stream_gets_everything() -> None:
    """Programs that share a terminal or a pipe with this one may make it non-blocking."""
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE) as process:
        time.sleep(1)  # the pipe is full
        output, _ = process.communicate()
    assert process.returncode == 0
    assert output.decode() == f"{LINE}\n" * 20_000


def test_text_that_the_encoding_lacks_is_escaped() -> None:
    """The encoding may be ASCII, as in containers without a locale; names of files may be any bytes."""
    code = "from hydrant.terminal.console import say, standard_streams\nwith standard_streams():\n    "
    code += r"say('gr\xf6\xdfe \u2587'); say('caf\udce9\u2587\udce9'); say('\udc9b2J')"  # 0x9b is Esc [
    for encoding in ("ascii", "ascii:surrogateescape", "latin-1"):
        environment = {**os.environ, "PYTHONIOENCODING": encoding}
        output = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, check=True
        ).stdout
        text = b"gr\xf6\xdfe \\u2587" if encoding == "latin-1" else b"gr\\xf6\\xdfe \\u2587"
        assert output.splitlines() == [text, b"caf\xe9\\u2587\xe9", b"\\udc9b2J"]
