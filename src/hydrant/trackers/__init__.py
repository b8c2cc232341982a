"""What receives the metrics of a run. Trackers of services are extensions; the core's writes the run folder only."""

from hydrant.trackers.base import NullTracker as NullTracker
