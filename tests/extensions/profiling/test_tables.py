"""The tables of a profile: time by phase and by kernel."""

from torch.autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent

from hydrant.extensions.profiling import phase_table


def event(
    name: str, start: float, end: float, thread: int = 1, *, is_annotation: bool = False
) -> FunctionEvent:
    return FunctionEvent(0, name, thread, start, end, is_user_annotation=is_annotation)


def test_device_time_counts_for_the_phase_that_launched_the_kernel() -> None:
    forward, backward = (
        event("forward", 0, 10, is_annotation=True),
        event("backward", 10, 30, is_annotation=True),
    )
    inner, launched, from_another_thread = (
        event("aten::mm", 2, 3),
        event("mine", 5, 6),
        event("grad", 20, 21, 7),
    )
    inner.append_kernel("gemm", 0, 100)
    launched.append_kernel("triton", 0, 40)
    from_another_thread.append_kernel("gemm_grad", 0, 300)
    forward.append_kernel("forward", 0, 500)  # the annotation itself, which appears on the device too
    kernel = FunctionEvent(1, "gemm", 7, 50, 150, device_type=DeviceType.CUDA)
    events = [forward, backward, inner, launched, from_another_thread, kernel]
    header, first, second = phase_table(events, 2).splitlines()
    assert header.split() == ["ms", "ms/update", "share", "device", "ms", "calls", "phase"]
    assert first.split() == ["0.010", "0.005", "33.3%", "0.140", "1", "forward"]
    assert second.split() == ["0.020", "0.010", "66.7%", "0.300", "1", "backward"]
