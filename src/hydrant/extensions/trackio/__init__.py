"""The tracker that writes to Trackio."""

from typing import TYPE_CHECKING

from hydrant.imports import lazy_exports

if TYPE_CHECKING:
    from hydrant.extensions.trackio.tracker import TrackioTracker as TrackioTracker

__getattr__, __dir__ = lazy_exports(__name__)
