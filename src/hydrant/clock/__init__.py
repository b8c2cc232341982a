"""Time, counted in updates. Only this package converts durations; everything else counts updates.

A duration is written `500` (updates), `10ep` (epochs), `64000sa` (samples), `10Mtok` (tokens), `1e15flop` (FLOPs),
`300s`, `5min` or `2h` (of training) or, inside a run, `5%` of its duration. One epoch follows another without a gap. So
`10ep` are `ceil(10 * num_samples / global_batch_size)` updates: at least ten epochs. What repeats is not rounded once
but at each of its multiples (`Interval`), so it stays in step with the epochs.
"""

from hydrant.clock.duration import Duration as Duration
from hydrant.clock.duration import UpdateSeconds as UpdateSeconds
from hydrant.clock.duration import converted as converted
from hydrant.clock.interval import NOTHING as NOTHING
from hydrant.clock.interval import Due as Due
from hydrant.clock.interval import Interval as Interval
from hydrant.clock.interval import Intervals as Intervals
from hydrant.clock.interval import Steps as Steps
from hydrant.clock.interval import Updates as Updates
from hydrant.clock.run_clock import Clock as Clock
from hydrant.clock.run_clock import SampleCosts as SampleCosts
from hydrant.clock.run_clock import batch_size_steps as batch_size_steps
