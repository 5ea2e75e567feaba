"""The `step` of a torch optimizer as a function of tensors: parameters, gradients, its state and learning rates."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import torch
from torch import fx, nn

from ark_torch._compat import as_if_compiling, functional_graph
from ark_torch.errors import Unsupported

_READS = torch.ops.aten._local_scalar_dense.default  # the value of a tensor, on the CPU


def store_values(where: list[torch.Tensor], values: list[torch.Tensor]) -> None:
    """Where a loop has not written them in place."""
    for old, new in zip(where, values):
        if old.data_ptr() != new.data_ptr():
            old.copy_(new)


class State:
    """An optimizer's tensors: for each parameter a list, by names in their order, on the parameter's device. (Without
    `capturable` the numbers of steps are on the CPU.)"""

    def __init__(self, optimizer: torch.optim.Optimizer, parameters: list[torch.Tensor]):
        states = [optimizer.state.get(p, {}) for p in parameters]
        self.given = [{k: v for k, v in state.items() if v is not None} for state in states]
        for name, value in (item for state in self.given for item in state.items()):
            if not isinstance(value, torch.Tensor):
                found = f"{value!r} ({type(value).__name__})"
                raise Unsupported(f"train_loop: state {name!r} of {type(optimizer).__name__} is {found}, no tensor")
        self.names = [sorted(state) for state in self.given]
        self.tensors = [
            [state[name].to(p.device) for name in names] for state, names, p in zip(self.given, self.names, parameters)
        ]

    def store(self, states: list[list[torch.Tensor]]) -> None:
        """What has become of them; the ones on the CPU together, by one copy."""
        pairs = [
            (state[name], new)
            for state, names, values in zip(self.given, self.names, states)
            for name, new in zip(names, values)
        ]
        beside = [pair for pair in pairs if pair[0].device == pair[1].device]
        store_values([old for old, _ in beside], [new for _, new in beside])
        apart = [pair for pair in pairs if pair[0].device != pair[1].device]
        if apart:
            moved = torch.stack([new.to(torch.float32) for _, new in apart]).to(apart[0][0].device)
            store_values([old for old, _ in apart], list(moved))


class Update:
    """The traced step of one optimizer. Learning rates are data where its `step` allows that, else constants."""

    def __init__(self, optimizer: torch.optim.Optimizer, parameters: list[torch.Tensor], max_norm: float | None):
        taken = set(parameters)
        self.groups = [[p for p in group["params"] if p in taken] for group in optimizer.param_groups]
        self.parameters, self.max_norm = parameters, max_norm
        self.graph: fx.GraphModule | None = None
        self.constant_rates: list[float] | None = None

    def traced(self, optimizer, state: State, rates: list[list[float]], device: torch.device) -> fx.GraphModule:
        """graph(parameters, gradients, states, rates [groups]) -> (parameters, states); writes nothing. `rates` are
        those of all steps."""
        constants, steady = rates[0], all(row == rates[0] for row in rates)
        if self.graph is not None and (self.constant_rates is None or steady and self.constant_rates == constants):
            return self.graph
        row = torch.tensor(constants, dtype=torch.float32, device=device)
        for rate_of in (_tensor_rate, _differentiable_rate) if self.constant_rates is None else ():
            self.graph = self._trace(optimizer, state, row, rate_of)
            if not _reads_values(self.graph):
                return self.graph
        self.graph = self._trace(optimizer, state, row, lambda _, place: constants[place])
        self.constant_rates = constants
        if _reads_values(self.graph):
            raise Unsupported(f"train_loop: {type(optimizer).__name__}.step reads values of tensors on the CPU")
        if not steady:
            raise Unsupported(f"train_loop: {type(optimizer).__name__}.step takes no learning rates that change")
        return self.graph

    def _trace(self, optimizer, state: State, row: torch.Tensor, rate_of: Callable) -> fx.GraphModule:
        step = type(optimizer).step
        while getattr(step, "hooked", False):  # the profiler's record, and hooks
            step = step.__wrapped__

        def update(values, gradients, tensors, rates):
            values = [x.clone() for x in values]
            tensors = [[x.clone() for x in of_one] for of_one in tensors]
            for x, gradient in zip(values, gradients):
                x.grad = gradient.clone()
            if self.max_norm is not None:
                nn.utils.clip_grad_norm_(values, self.max_norm, foreach=False)
            own = type(optimizer).__new__(type(optimizer))
            own.__dict__.update(optimizer.__dict__)
            left = iter(values)
            own.param_groups = [
                _group(group, [next(left) for _ in params], rate_of(rates, place))
                for place, (group, params) in enumerate(zip(optimizer.param_groups, self.groups))
            ]
            own.state = defaultdict(dict)
            for x, names, of_one in zip(values, state.names, tensors):
                own.state[x] = dict(zip(names, of_one))
            before = [settings_of(group) for group in own.param_groups]
            with as_if_compiling(), torch.no_grad():
                step(own)
            if [settings_of(group) for group in own.param_groups] != before:
                raise Unsupported(f"train_loop: {type(optimizer).__name__}.step changes its parameter groups")
            return values, tensors

        values = [p.detach() for p in self.parameters]
        return functional_graph(update, values, [torch.zeros_like(x) for x in values], state.tensors, row)


def settings_of(group: dict) -> list[tuple[str, str]]:
    """What a parameter group says, but for parameters and learning rates."""
    return sorted((k, repr(v)) for k, v in group.items() if k not in ("params", "lr", "initial_lr"))


def _group(group: dict, params: list, rate) -> dict:
    traced = {"foreach": False, "fused": None, "capturable": True}
    return {**group, **{k: v for k, v in traced.items() if k in group}, "params": params, "lr": rate}


def _tensor_rate(rates: torch.Tensor, place: int) -> torch.Tensor:
    return rates[place]


def _differentiable_rate(rates: torch.Tensor, place: int) -> torch.Tensor:
    """Some optimizers read the values of rates that are not."""
    return rates[place].detach().clone().requires_grad_()


def _reads_values(graph: fx.GraphModule) -> bool:
    return any(node.target is _READS for node in graph.graph.nodes)


__all__ = ["State", "Update", "settings_of", "store_values"]
