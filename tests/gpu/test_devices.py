"""GPUs of the stub: how many, their memory, and their names."""

import os
import subprocess
import sys

import pytest
import torch

pytestmark = pytest.mark.cuda(devices=8, memory_gib=1)

MIB = 2**20


def test_a_tensor_keeps_its_device() -> None:
    x = torch.ones(3, device="cuda:1")
    assert (x + x).device == torch.empty_like(x).device == torch.device("cuda:1")
    assert torch.arange(3, device=x.device).to("cuda:0").device == torch.device("cuda:0")
    with torch.cuda.device(1):
        assert torch.zeros(2, device="cuda").device == torch.device("cuda:1")
    with pytest.raises(RuntimeError, match="two devices, cuda:1 and cuda:0"):
        x + torch.ones(3, device="cuda:0")


def test_each_device_has_its_memory_and_its_generator() -> None:
    before = [torch.cuda.mem_get_info(device)[0] for device in (0, 1)]
    held = torch.empty(512 * MIB, dtype=torch.uint8, device="cuda:1")
    after = [torch.cuda.mem_get_info(device)[0] for device in (0, 1)]
    assert (after[0], before[1] - after[1]) == (before[0], held.numel())
    states = [torch.cuda.get_rng_state(device) for device in (0, 1)]
    torch.randn(3, device="cuda:1")
    assert torch.equal(torch.cuda.get_rng_state(0), states[0])
    assert not torch.equal(torch.cuda.get_rng_state(1), states[1])


def test_memory_runs_out() -> None:
    held = [torch.empty(256 * MIB, dtype=torch.uint8, device="cuda:3") for _ in range(3)]
    assert torch.cuda.mem_get_info(3) == (256 * MIB, 1024 * MIB)
    with pytest.raises(torch.cuda.OutOfMemoryError, match="CUDA out of memory"):
        torch.empty(512 * MIB, dtype=torch.uint8, device="cuda:3")
    held.clear()
    torch.empty(512 * MIB, dtype=torch.uint8, device="cuda:3")


SHOW = """
import ctypes
cuda, count, name = ctypes.CDLL(None), ctypes.c_int(), ctypes.create_string_buffer(16)
cuda.cudaGetDeviceCount(ctypes.byref(count))
for number in range(count.value):
    cuda.cudaDeviceGetPCIBusId(name, 16, number)
    print(name.value.decode())
"""


def seen(visible: str | None) -> list[str]:
    """Return the addresses of the GPUs that another process sees with these visible devices."""
    others = {key: value for key, value in os.environ.items() if key != "CUDA_VISIBLE_DEVICES"}
    variables = others if visible is None else others | {"CUDA_VISIBLE_DEVICES": visible}
    done = subprocess.run(
        [sys.executable, "-c", SHOW], env=variables, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_visible_devices_are_chosen_as_cuda_does() -> None:
    every = seen(None)
    assert len(set(every)) == 8
    assert seen("3,1") == [every[3], every[1]]
    uuid = torch.cuda.get_device_properties(5).uuid
    assert seen(f"GPU-{uuid}") == seen(f"GPU-{str(uuid)[:8]}") == [every[5]]
    other = torch.cuda.get_device_properties(2).uuid
    for parts in (f"MIG-GPU-{uuid}/1/0", f"MIG-{uuid}", f"MIG-{uuid},MIG-{other}"):
        assert seen(parts) == [every[5]]
    assert seen("2,9,3") == [every[2]]
    assert seen("") == []


def test_a_sweep_sees_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    from hydrant.extensions.local import _visible_gpus

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,2")
    gpus = _visible_gpus([])
    assert list(gpus) == ["6", "2"]
    assert len(set(gpus.values())) == 2


@pytest.mark.slow
def test_a_sweep_sees_parts_of_gpus_by_any_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """One alone is known to CUDA, and the second of two is not."""
    from hydrant.extensions.local import _visible_gpus

    names = [f"MIG-{torch.cuda.get_device_properties(number).uuid}" for number in (6, 2)]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(names))
    together = _visible_gpus([])
    assert list(together) == names
    for name in names:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", name)
        assert _visible_gpus([]) == {name: together[name]}
