"""Run SLURM with this machine as its only node."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

INSTALL = "needs SLURM, as root: apt-get install -y --no-install-recommends slurm-wlm munge"
CONFIG = """
ClusterName=hydrant
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
AuthType=auth/munge
CryptoType=crypto/munge
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MpiDefault=none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_slurm(folder: Path) -> Iterator[None]:
    """Run SLURM in an empty folder until the generator continues. Its commands find it by SLURM_CONF."""
    if os.geteuid() or not all(map(shutil.which, ("slurmctld", "slurmd", "munged", "sbatch"))):
        pytest.skip(INSTALL)
    (folder / "state").mkdir()
    (folder / "spool").mkdir()
    host = socket.gethostname().partition(".")[0]
    config = CONFIG.format(folder=folder, host=host, cpus=os.cpu_count(), ports=[free_port(), free_port()])
    (folder / "slurm.conf").write_text(config)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
        start_munge()
        subprocess.run(["slurmctld"], check=True)
        subprocess.run(["slurmd", "-N", host], check=True)
        wait_until_idle(folder)
        try:
            yield
        finally:
            for name in ("slurmd", "slurmctld"):
                os.kill(int((folder / f"{name}.pid").read_text()), signal.SIGTERM)


def start_munge() -> None:
    """Start munge, which authenticates SLURM's processes to each other, unless it runs on this machine."""
    if subprocess.run(["munge", "-n"], capture_output=True, check=False).returncode == 0:
        return
    Path("/run/munge").mkdir(exist_ok=True)
    shutil.chown("/run/munge", "munge", "munge")
    subprocess.run(["runuser", "-u", "munge", "--", "/usr/sbin/munged"], check=True)


def wait_until_idle(folder: Path) -> None:
    deadline = time.monotonic() + 30
    while True:
        state = subprocess.run(["sinfo", "-h", "-o", "%T"], capture_output=True, text=True, check=False)
        if state.stdout.strip() == "idle":
            return
        assert time.monotonic() < deadline, (folder / "slurmctld.log").read_text()
        time.sleep(0.2)
