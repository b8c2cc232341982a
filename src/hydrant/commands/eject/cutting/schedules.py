"""The schedules of the optimizer's fields."""

from __future__ import annotations

from hydrant.commands.eject.cutting.collector import Collector
from hydrant.commands.eject.schedule_parts import field_source


def cut_schedules(collector: Collector) -> None:
    """Add the schedule of the learning rate."""
    schedules = collector.plan.optimizers.schedules
    collector.know(ONLY_LR=True)
    [field] = schedules.fields.values()
    source = field_source(collector.config["scheduler"], collector.plan.clock, field.name)
    for name, (value, comment) in source.constants.items():
        collector.constant(name, value, comment, group="The schedule.")
    for name, known in source.known_in.items():
        collector.parts.known_in[name] = known
    collector.know(**source.known)
    for name, (text, imports) in source.written.items():
        collector.write(name, "schedule", text, **imports)
