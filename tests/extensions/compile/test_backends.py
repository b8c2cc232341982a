"""`hydrant backends` says of each backend of torch.compile whether it runs here; one that does not is refused."""

from pathlib import Path

import pytest
import torch
from marks import slow_but
from torch import nn

from hydrant import cli
from hydrant.extensions.compile.command import obstacles_of_backends

OBSTACLES = obstacles_of_backends()
READY = [name for name, obstacle in OBSTACLES.items() if obstacle is None and name != "inductor"]


@pytest.mark.filterwarnings("ignore")  # TorchScript warns that it is deprecated
@pytest.mark.parametrize("name", slow_but(("eager",), READY))
def test_a_backend_that_is_ready_compiles_a_model(name: str) -> None:
    net = nn.Linear(3, 2)
    inputs = torch.randn(4, 3)
    expected = net(inputs).sum()
    compiled = torch.compile(net, backend=name)(inputs).sum()
    compiled.backward()
    torch.testing.assert_close(compiled, expected)
    assert net.weight.grad is not None


@pytest.mark.parametrize("name", ["tvm", "openxla", "openxla_eval"])
def test_a_backend_whose_package_is_missing_is_refused_before_the_start(
    name: str, workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    obstacle = OBSTACLES.get(name)
    if obstacle is None:
        pytest.skip("its package is installed")
    words = ("train", "tracker=local", "compile=default", f"compile.backend={name}", "duration=1",
             "model.hidden=[4]")  # fmt: skip
    assert cli.main([*words]) == 2
    assert f"compile.backend: {name} {obstacle}" in capsys.readouterr().err
    assert not list(workdir.iterdir())
    assert cli.main([*words, "compile.on_failure=fallback"]) == 0
