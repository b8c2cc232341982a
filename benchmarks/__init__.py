"""Compare Hydrant's speed with hand-written loops and other trainers. `scripts/bench` runs these and writes
docs/internals/performance.md.
"""

PARTS = {
    "cpu": [
        "update_overhead", "whole_update", "host_syncs", "kept_memory", "start", "sweep_rate", "compile_time",
        "data_loading", "checkpoint_cost", "tracking_cost", "scale",
    ],
    "gpu": ["host_syncs", "vit_speed", "vit_flops", "vit_small", "optimizer_memory"],
}  # fmt: skip
"""The benchmarks by machine, in the order of the page. Each is a module with `measure(*, quick) -> list[Figure]`."""

BENCHMARKS = list(dict.fromkeys(name for names in PARTS.values() for name in names))
