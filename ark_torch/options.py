"""The options of `torch.compile(model, backend="ark", options={...})`: names, types, ranges, defaults, meanings."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

MOST = 2**63 - 1


@dataclass(frozen=True)
class Option:
    type: type
    default: str
    meaning: str
    choices: tuple[str, ...] = ()
    low: int = 0  # of an int, both ends included; csrc/bindings/graph/options.cpp has the same
    high: int = 0
    native: bool = True  # CompiledGraph's, not the front end's

    def check(self, name: str, value) -> None:
        if not isinstance(value, self.type) or (isinstance(value, bool) and self.type is int):
            raise TypeError(f"option {name!r} is {value!r}, expected {self.type.__name__}")
        if self.choices and value not in self.choices:
            raise ValueError(f"option {name!r} is {value!r}, expected one of {', '.join(self.choices)}")
        if self.type is int and not self.low <= value <= self.high:
            raise ValueError(f"option {name!r} is {value}, expected {self.low} to {self.high}")

    @property
    def values(self) -> str:
        if self.choices:
            return ", ".join(f'"{c}"' for c in self.choices)
        if self.type is bool:
            return "bool"
        return f"{self.low} to {'2**63 - 1' if self.high == MOST else self.high}"


OPTIONS = {
    "strict": Option(
        bool,
        "False",
        "what would run through ATen, at compilation or at a later call, is an error that names the cause; so is "
        "a graph break (not one asked for by torch.compiler.disable); where nothing is captured, ark is not asked",
        native=False,
    ),
    "target": Option(
        str,
        '"auto", the tensors\' device',
        "where plans run; must fit the tensors' device",
        ("auto", "cuda", "host"),
        native=False,
    ),
    "fallback_random": Option(
        bool,
        "False",
        "random numbers are eager's, bit for bit: ATen draws them (rand, randn, dropout, ...); no fallback to strict",
        native=False,
    ),
    "workers": Option(
        int,
        "132; on a GPU one per SM",
        "workers of the plan: CTAs of the loop kernel, at most one per SM, or coroutines of the host target",
        low=1,
        high=1024,
    ),
    "costs": Option(
        str,
        '"auto", those of the GPU model',
        "file of what work costs on this GPU, by which the planner chooses: JSON, as benchmarks/costs.py writes it",
        native=False,
    ),
    "schedule": Option(
        str,
        '"greedy"',
        'order of the tiles; with "sequential" every op waits for the whole op before it, for debugging',
        ("greedy", "sequential"),
    ),
    "tensor_cores": Option(bool, "True", "tasks on tensor cores, and their shape on the host; False: plain tasks"),
    "few_rows": Option(bool, "True", "products of few rows by tasks of their own; False: as those of many rows"),
    "reuse_memory": Option(bool, "True", "values share the arena when their lifetimes allow; False: all apart"),
    "trace": Option(
        bool, "False", "builds the kernel that writes time stamps at once (profile() builds it when needed)"
    ),
    "deadline_ms": Option(
        int, "5000", "how long a tile waits for another before the run fails with DeviceError", low=1, high=86_400_000
    ),
    "max_executables": Option(
        int,
        "64",
        "plans kept per graph, one per set of sizes; the least recently used goes first",
        low=1,
        high=1_000_000,
    ),
    "threads": Option(int, "0, one per core", "threads of the host target", low=0, high=1024),
    "seed": Option(
        int, "0", "order in which the host target runs what is ready; results do not depend on it", high=MOST
    ),
}


def check_options(options: dict) -> None:
    """Raises ValueError or TypeError naming the option that ark does not know, or what it expects of its value."""
    for name, value in options.items():
        if name not in OPTIONS:
            raise ValueError(f'backend "ark" has no option {name!r} (known: {", ".join(sorted(OPTIONS))})')
        OPTIONS[name].check(name, value)


def describe_options() -> str:
    """The list in help(ark_torch.backend.ark)."""
    lines = []
    for name, option in OPTIONS.items():
        text = f"{option.meaning} ({option.values}; default {option.default})"
        lines += textwrap.wrap(text, 110, initial_indent=f"{name:<17}", subsequent_indent=" " * 17)
    return "\n".join(lines)
