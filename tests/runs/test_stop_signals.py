"""Signals stop a run or a sweep after its state is saved."""

import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
from processes import wait_for, wait_for_row
from run_folders import summary
from sweeps import started_runs
from training_runs import Train, command

WORDS = ("tracker=local", "duration=20000", "log_every=7", "eval_every=50", "save_every=10", "model.hidden=[32]",
         "model.dropout=0.3", "data.augment.max_shift=1", "scheduler.warmup=10%", "micro_batch_size=32")  # fmt: skip


def first_job(sweep: Path, process: subprocess.Popen[bytes]) -> Path:
    """Return the folder of a sweep's first job, once it trains."""
    wait_for(lambda: bool(started_runs(sweep)), process)
    [job] = started_runs(sweep)
    wait_for_row(job, 14, process)
    return job


@pytest.mark.parametrize(
    ("signum", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGUSR1, 138)]
)
def test_a_signal_saves_and_leaves_a_resumable_run(
    signum: signal.Signals, status: int, train: Train, workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whenever it comes: another thread sends it to this process."""
    rows = workdir / "outputs" / "run" / "metrics.jsonl"

    def send() -> None:
        while not rows.exists() or rows.read_bytes().count(b"\n") < 5:
            time.sleep(0.002)
        os.kill(os.getpid(), signum)

    (sender := threading.Thread(target=send)).start()
    folder = train(*WORDS, status=status)
    sender.join()
    num_updates = summary(folder)["num_updates"]
    message = f"stopped by {signum.name} after update {num_updates}; the same command continues it"
    assert capsys.readouterr().err.strip().splitlines()[-1] == message
    assert summary(folder)["status"] == "preempted"
    assert (folder / "checkpoints" / f"update_{num_updates:08d}").is_dir()


HANGING = """
from torch import zeros
from torch.utils.data import Dataset

class Hanging(Dataset):
    reads = 0

    def __len__(self):
        return 64

    def __getitem__(self, index):
        self.reads += 1
        if self.reads > 40:  # of a drive that never answers
            open("waiting", "w").close()
            open("pipe").read()
        return zeros(4), index % 3
"""


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_second_sigterm_ends_a_run_that_waits_for_a_drive(num_workers: int, workdir: Path) -> None:
    (workdir / "hanging.py").write_text(HANGING)
    os.mkfifo(workdir / "pipe")
    sets = ("data.train._target_=hanging.Hanging", "data.val._target_=hanging.Hanging")
    words = ("tracker=local", "data=dataset", *sets, "allow_targets=[hanging]", "data.num_classes=3",
             "data.input_shape=[4]", f"data.num_workers={num_workers}",
             "eval_every=null", "duration=500", "global_batch_size=4", "model.hidden=[8]", "name=waits")  # fmt: skip
    process = subprocess.Popen(command(*words), cwd=workdir, stderr=subprocess.PIPE)
    wait_for((workdir / "waiting").exists, process)
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    time.sleep(1.5)
    assert process.poll() is None, "the first one waits for the update"
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 143
    assert "stopped by SIGTERM without saving" in stderr.decode()
    assert summary(workdir / "outputs" / "waits")["status"] == "preempted"


@pytest.mark.slow
def test_ctrl_c_saves_when_it_also_ends_the_reader_of_the_output(workdir: Path) -> None:
    """As with `python train.py 2>&1 | tee log`: Ctrl-C ends tee, and nothing can be printed any more."""
    folder = workdir / "outputs" / "piped"
    reader, writer = os.pipe()
    words = command(*WORDS, "name=piped")
    process = subprocess.Popen(words, cwd=workdir, stdout=writer, stderr=writer)
    os.close(writer)
    wait_for_row(folder, 30, process)
    os.close(reader)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    assert summary(folder)["status"] == "preempted"
    assert (folder / "checkpoints" / f"update_{summary(folder)['num_updates']:08d}").is_dir()


@pytest.mark.slow
def test_ctrl_c_stops_a_sweep_after_saving_its_job(workdir: Path) -> None:
    process = subprocess.Popen(
        command("-m", *WORDS, "name=stopped", "seed=0,1"), cwd=workdir, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    job = first_job(workdir / "multirun" / "stopped", process)
    os.killpg(process.pid, signal.SIGINT)  # like a terminal
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert summary(job)["status"] == "preempted"
    assert started_runs(job.parent) == [job]
    assert b"preempted" in output
