"""One row of models_table.py, in a process of its own: `--compile` makes the first call of ark and inductor, and ends;
without it every contestant is built, checked and timed in turns.

A contestant named X-graph is X in a CUDA graph. What fails to build is in the row's `failed`.
"""

from __future__ import annotations

import argparse
import copy
import gc
import sys
import time

import torch

import ark_torch
from ark_torch.records import REGISTRY
from harness import (
    Captured,
    Case,
    Timer,
    check_against_fp64,
    compiled,
    composition,
    contestants_of,
    device,
    eager_of,
    measure,
    relative_error,
    summary,
)
from model_entries import Entry, entry
from models import set_position, static_cache
from workers import STAY, emit

WALL_CALLS = 20


def first_tensor(output: object) -> torch.Tensor:
    """Logits, or the last hidden state; the loss where there is one."""
    return output if isinstance(output, torch.Tensor) else output[0]


class Step:
    """One contestant: what it calls, and what has to happen before each call. Training has weights of its own, the
    other modes share them."""

    def __init__(self, table: Entry, mode: str, model: torch.nn.Module, inputs: dict, seed_cache=None, autocast=True):
        self.autocast, self.entry, self.inputs, self.graph, self.cache = (autocast, table, dict(inputs), None, None)
        self.model = copy.deepcopy(model) if table.mode == "training" else model
        if table.mode == "cached":
            batch, length = inputs["input_ids"].shape
            self.cache = static_cache(self.model, table.cache, batch)
            self.inputs |= {"past_key_values": self.cache} | ({"logits_to_keep": 1} if length > 1 else {})
        self.call = compiled(lambda given: first_tensor(self.model(**given)), mode.removesuffix("-graph"))
        self.prepare()
        begin = time.perf_counter()
        if mode.endswith("-graph"):
            with torch.set_grad_enabled(table.mode == "training"):
                self.graph = Captured(self.step, self.prepare)
        else:
            self()
        synchronize()
        self.first_call = time.perf_counter() - begin
        if seed_cache is not None:  # last: the calls above have written rows
            for mine, theirs in zip(self.cache.layers, seed_cache.layers):
                mine.keys.copy_(theirs.keys)
                mine.values.copy_(theirs.values)

    def prepare(self) -> None:
        if self.cache is not None:
            set_position(self.cache, self.entry.position)
        if self.entry.mode == "training":
            for parameter in self.model.parameters():
                if self.graph is None:
                    parameter.grad = None
                elif parameter.grad is not None:
                    parameter.grad.zero_()

    def step(self) -> torch.Tensor | list[torch.Tensor]:
        if self.entry.mode != "training":
            return self.call(self.inputs)
        kind = next(self.model.parameters()).device.type
        with torch.autocast(kind, dtype=self.entry.dtype, enabled=self.autocast):
            loss = self.call(self.inputs)
        loss.backward()
        return [loss.detach(), *probes(self.model)]

    def __call__(self) -> torch.Tensor | list[torch.Tensor]:
        if self.graph is not None:
            return self.graph()
        with torch.set_grad_enabled(self.entry.mode == "training"):
            return self.step()


def probes(model: torch.nn.Module) -> list[torch.Tensor]:
    """Gradients of some weights: the first, one of the middle and the last."""
    found = [p.grad for p in model.parameters() if p.grad is not None and p.dim() > 1]
    return [found[0], found[len(found) // 2], found[-1]]


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def free_unused() -> None:
    gc.collect()  # steps refer to themselves
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def in_dtype(inputs: dict, dtype: torch.dtype) -> dict:
    return {name: x.to(dtype) if x.is_floating_point() else x for name, x in inputs.items()}


def reference(table: Entry, model: torch.nn.Module, inputs: dict, seed_cache) -> object:
    """The same in fp32, without TF32 and autocast, which bf16's rounding is judged by; fp64 for models of fp32."""
    dtype = torch.float64 if table.dtype == torch.float32 else torch.float32
    wide = copy.deepcopy(model).to(dtype)
    step = Step(table, "eager", wide, in_dtype(inputs, dtype), seed_cache, autocast=False)
    step.prepare()
    return step()


def check_gradients(expected: list[torch.Tensor], factor: float):
    """The loss (first) is one number, its error a single draw: reported and not judged. The gradients are."""

    def check(outputs: dict[str, list[torch.Tensor]]) -> dict:
        errors = {name: [relative_error(a, b) for a, b in zip(out, expected)] for name, out in outputs.items()}
        for mine, eager in zip(errors.get("ark", [])[1:], eager_of(errors)[1:]):
            if not mine <= factor * eager:
                raise AssertionError(f"ark's error {mine:.3e} is over {factor} times eager's {eager:.3e}: {errors}")
        return errors

    return check


def facts(call) -> dict:
    """What ark's call is made of, and what the planner says of it."""
    report = ark_torch.report()
    stats = [segment.executable.stats() for record in REGISTRY.graphs for segment in record.segments]
    return composition(call) | {
        "graphs": len(report.graphs),
        "spill_bytes": [s["spill_bytes"] for s in stats],
        "aten_steps": sum(record.num_aten for record in report.graphs),
        "internal_errors": report.internal_errors,
        "bytes": report.bytes,
        "flops": report.flops,
        "floor_ms": report.floor_ms,
        "predicted_ms": report.predicted_ms,
        "compile_s": ark_torch.compile_times(),
    }


def wall_ms(step: Step, calls: int) -> dict:
    """By the clock: a call, and waiting for it."""
    samples = []
    for _ in range(calls):
        step.prepare()
        synchronize()
        begin = time.perf_counter()
        step()
        synchronize()
        samples.append((time.perf_counter() - begin) * 1e3)
    return summary(samples)


class Row:
    """The contestants of an entry, and what is measured of them."""

    def __init__(self, table: Entry, modes: str, small: bool):
        self.where, self.entry, self.steps, self.failed = device(), table, {}, {}
        torch.manual_seed(0)
        with torch.device(self.where):
            model = table.model(small)
        training = table.mode == "training"
        self.model = model.train() if training else model.to(table.dtype).eval().requires_grad_(False)
        inputs = table.inputs(model, self.where, small)
        self.inputs = inputs if training else in_dtype(inputs, table.dtype)
        self.seed_cache = None
        if table.mode == "cached":
            self.seed_cache = static_cache(model, table.cache, len(inputs["input_ids"]))
        self.modes, self.timed = contestants_of(modes, self.where)

    def build(self) -> None:
        for mode in sorted(self.modes, key=lambda mode: mode.endswith("-graph")):  # captures, which may fail, last
            try:
                self.steps[mode] = Step(self.entry, mode, self.model, self.inputs, self.seed_cache)
            except Exception as error:  # a rival that cannot run is a result too
                if mode == "ark":
                    raise
                self.failed[mode] = f"{type(error).__name__}: {error}"[:300]
            free_unused()

    def first_calls(self) -> dict[str, float]:
        return {mode: step.first_call for mode, step in self.steps.items()}

    def expect_and_build(self) -> None:
        self.expected = reference(self.entry, self.model, self.inputs, self.seed_cache)
        free_unused()
        self.build()

    def measured(self, rounds: int, first_calls: str = "warm") -> dict:
        expected, factor = self.expected, self.entry.factor
        training = self.entry.mode == "training"
        case = Case(
            case=self.entry.name,
            contestants=dict(self.steps),
            timed=self.timed,
            prepare=lambda name: self.steps[name].prepare(),
            check=check_gradients(expected, factor) if training else check_against_fp64(expected, factor),
            notes={"mode": self.entry.mode, "parameters": sum(p.numel() for p in self.model.parameters())},
        )
        row = measure(case, Timer(self.where, flush_l2=not training), rounds, warmup=3)
        if "ark" in row.get("failed", {}):
            raise RuntimeError(f"ark: {row['failed']['ark']}")
        row["failed"] = self.failed | row.get("failed", {})
        running = [name for name in self.steps if name not in row["failed"]]
        row["wall_ms"] = {name: wall_ms(self.steps[name], min(rounds, WALL_CALLS)) for name in running}
        if "ark" in running:
            self.steps["ark"].prepare()
            row["plan"] = facts(self.steps["ark"])
            row["floor"] = row["plan"]["floor_ms"]
            rivals = [result["median"] for result in row["rivals"].values()]
            row["best_rival_over_ark"] = min(rivals) / row["ark"]["median"] if rivals else None
        return row | {"first_call_s": {first_calls: self.first_calls()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--modes", required=True)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--compile", action="store_true", help="fill the caches, and no more")
    parser.add_argument(STAY, action="store_true", help="when all is built, wait for a line; then measure")
    parser.add_argument("--small", action="store_true")
    args = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = False
    torch._dynamo.config.recompile_limit = 64  # contestants share code
    row = Row(entry(args.name), args.modes, args.small)
    if args.compile:
        row.modes = [mode for mode in row.modes if mode != "eager"]
        row.build()
        emit({"first_calls": row.first_calls(), "failed": row.failed})
        return
    row.expect_and_build()
    if args.stay:
        emit({"failed": row.failed})
        sys.stdin.readline()
    emit(row.measured(args.rounds, "cold" if args.stay else "warm"))


if __name__ == "__main__":
    main()
