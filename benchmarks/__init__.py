"""Compare Hydrant's speed with hand-written loops and other trainers. `scripts/bench` and `scripts/gpu` run these and
write docs/internals/performance.md.
"""

GPU_PARTS = {
    "runs": ["cuda_runs", "host_syncs"],
    "tests": ["cuda_tests"],
    "vit_speed": ["vit_speed"],
    "vit_flops": ["vit_flops"],
    "small": ["vit_small", "optimizer_memory"],
    "sweep": ["shared_gpu"],
    "lanes": ["stacked_gpu"],
    "levers": ["vit_levers"],
    "two_gpus": ["two_gpus"],
}
"""The parts of `scripts/gpu`. Each takes at most eight minutes."""

PARTS = {
    "cpu": [
        "update_overhead", "whole_update", "update_cost", "host_syncs", "kept_memory", "start", "sweep_rate", "stacked",
        "compile_time", "data_loading", "token_loading", "checkpoint_cost", "tracking_cost", "scale",
    ],
    "gpu": [name for names in GPU_PARTS.values() for name in names],
}  # fmt: skip
"""The benchmarks by machine, in the order of the page.

Each is a module with `measure(*, quick)`, which returns figures, or with `cells(*, quick)`, which returns several such
functions by title. Goals that the page shows before they are measured are in its `GOALS`, by figure.
"""

BENCHMARKS = list(dict.fromkeys(name for names in PARTS.values() for name in names))
