"""The weights and buffers of the tasks of all lanes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from torch import Tensor, nn

from hydrant.training.stack.reasons import CannotStack
from hydrant.training.stack.weights import StackedWeights, stack_in_place
from hydrant.training.trainer import Trainer


class StackedTensors:
    """The weights and buffers of the tasks of all lanes. Those of each lane become views of them.

    Args:
        lanes: runs of the same program.
        unused: the names of weights that no loss depends on.

    Raises:
        CannotStack: a param group has weights of several dtypes.
    """

    def __init__(self, lanes: Sequence[Trainer], unused: set[str]) -> None:
        self._of_first = named_tensors(lanes[0].task)
        self._names = {id(tensor): name for name, tensor in self._of_first.items()}
        self.weights = self._stack_weights(lanes, unused)
        """For each named optimizer, those of each param group; None for a group whose weights get no gradient."""
        self.rest = self._stack_rest(lanes)
        """Buffers and weights that do not train, by name: (lanes, ...) each."""

    def trained(self) -> Iterator[StackedWeights]:
        """Yield the weights of each param group that trains."""
        return (weights for groups in self.weights.values() for weights in groups if weights is not None)

    def named(self, rows: Iterable[Tensor]) -> dict[str, Tensor]:
        """Return rows of the weights that train, one tensor for each of `trained`, by the names of the weights."""
        named = dict[str, Tensor]()
        for weights, row in zip(self.trained(), rows, strict=True):
            names = (self._names[id(parameter)] for parameter in weights.parameters[0])
            named |= zip(names, weights.stacked(row), strict=True)
        return named

    def by_name(self) -> dict[str, Tensor]:
        """Return all tensors by name, (lanes, ...) each; those that train lead to the rows that backward sees."""
        return {**self.rest, **self.named(weights.rows for weights in self.trained())}

    def by_identity(self) -> Mapping[int, Tensor]:
        """Return all tensors by the `id` of that of the first lane."""
        return {id(self._of_first[name]): tensor.detach() for name, tensor in self.by_name().items()}

    def show_gradients(self) -> None:
        """Let every parameter of every lane have its part of the gradient."""
        for weights in self.trained():
            weights.show_gradients()

    def _stack_weights(
        self, lanes: Sequence[Trainer], unused: set[str]
    ) -> dict[str, list[StackedWeights | None]]:
        stacked = dict[str, list[StackedWeights | None]]()
        for name, entry in lanes[0].optimizers.entries.items():
            stacked[name] = []
            for position, group in enumerate(entry.optimizer.param_groups):
                places = [
                    n
                    for n, parameter in enumerate(group["params"])
                    if parameter.requires_grad and self._names[id(parameter)] not in unused
                ]
                groups = [lane.optimizers.entries[name].optimizer.param_groups[position] for lane in lanes]
                of_lanes = [[group["params"][n] for n in places] for group in groups]
                if len({parameter.dtype for parameter in of_lanes[0]}) > 1:
                    raise CannotStack("a param group has weights of several dtypes")
                stacked[name].append(StackedWeights(of_lanes) if places else None)
        return stacked

    def _stack_rest(self, lanes: Sequence[Trainer]) -> dict[str, Tensor]:
        trained = {id(parameter) for weights in self.trained() for parameter in weights.parameters[0]}
        tensors = [named_tensors(lane.task) for lane in lanes]
        names = [name for name, tensor in self._of_first.items() if id(tensor) not in trained]
        return {name: stack_in_place([of_lane[name] for of_lane in tensors]) for name in names}


def named_tensors(task: nn.Module) -> dict[str, Tensor]:
    """Return the weights and buffers of a task by name, each once."""
    return dict(task.named_parameters()) | dict(task.named_buffers())
