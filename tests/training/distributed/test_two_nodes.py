"""A run on two nodes with torchrun equals the run of one process. Network namespaces replace the nodes."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from repository import ROOT
from run_folders import assert_close_rows, summary
from training_runs import run_command

WORDS = ("tracker=local", "model.hidden=[16]", "duration=4", "log_every=1", "eval_every=2", "save_every=2",
         "micro_batch_size=16", "limit_val_samples=37")  # fmt: skip
NODES = [f"hydrant{n}" for n in range(2)]


def ip(words: str) -> None:
    subprocess.run(["ip", *words.split()], check=True)


@pytest.fixture
def network() -> Iterator[None]:
    """Two network namespaces, connected by a virtual cable."""
    if os.geteuid() or shutil.which("ip") is None:
        pytest.skip("needs network namespaces, as root: apt-get install -y --no-install-recommends iproute2")
    created = list[str]()
    try:
        for node in NODES:
            ip(f"netns add {node}")
            created.append(node)
        ip(f"link add wire0 netns {NODES[0]} type veth peer name wire1 netns {NODES[1]}")
        for n, node in enumerate(NODES):
            ip(f"-n {node} addr add 10.77.0.{n + 1}/24 dev wire{n}")
            ip(f"-n {node} link set wire{n} up")
            ip(f"-n {node} link set lo up")
        yield
    finally:
        for node in created:
            ip(f"netns delete {node}")


@pytest.mark.slow
def test_two_nodes_make_the_run_of_one_process(network: None, workdir: Path) -> None:
    assert run_command(*WORDS, "name=one", cwd=workdir).returncode == 0
    nodes: list[subprocess.Popen[str]] = []
    for n, node in enumerate(NODES):
        torchrun = (
            f"-m torch.distributed.run --nnodes=2 --node-rank={n} --nproc-per-node=2 --master-addr=10.77.0.1"
        )
        words = [sys.executable, *torchrun.split(), "--master-port=29511", str(ROOT / "train.py"), *WORDS]
        nodes.append(subprocess.Popen(
            ["ip", "netns", "exec", node, *words], cwd=workdir, stdout=subprocess.PIPE, text=True,
            env=os.environ | {"GLOO_SOCKET_IFNAME": f"wire{n}"},
        ))  # fmt: skip
    outputs = [node.communicate(timeout=300)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0]
    # Without name=, rank 0 chooses the time in the path for both nodes.
    (run,) = (workdir / "outputs").glob("20*/*")
    assert summary(run)["status"] == "finished"
    assert [output.count("update 0 of ") for output in outputs] == [1, 0]
    assert_close_rows(workdir / "outputs" / "one", run)
