"""Collectives inside plans: each alone and fused, forward and backward, against the group's own calls. Ranks are
processes; `strict` makes an ATen step an error."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

import ark_torch
from ark_torch import lower_collective
from tests.conftest import has_extension
from tests.support.distributed_worker import own_device, run_each, run_ranks, values

pytestmark = pytest.mark.skipif(not has_extension(), reason="the extension is not built")

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.bool]
REDUCTIONS = ["sum", "avg", "min", "max", "product"]


def compiled(function: Callable, **options) -> Callable:
    torch._dynamo.reset()
    return torch.compile(function, backend="ark", fullgraph=True, options={"strict": True, **options})


def ranks_values(rank: int, sizes: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Another value on each rank."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    if dtype == torch.bool:
        made = torch.rand(sizes, generator=generator) < 0.6
    elif not dtype.is_floating_point:
        made = torch.randint(-9, 10, sizes, generator=generator, dtype=dtype)
    else:
        made = torch.randn(sizes, generator=generator).to(dtype)
    return made.to(own_device())


def check_equal(function: Callable, *arguments: torch.Tensor, launches: int = 3) -> None:
    """The bits of eager, which are those of the group's own calls; launches take turns with memory."""
    fast = compiled(function)
    for launch in range(launches):
        given = [a if a.dtype == torch.bool else a + launch for a in arguments]
        want, got = function(*given), fast(*given)
        for w, g in zip(want, got) if isinstance(want, (tuple, list)) else [(want, got)]:
            assert g.dtype == w.dtype and g.shape == w.shape and g.stride() == w.stride()
            assert torch.equal(g, w), f"{function}, launch {launch}: {g} instead of {w}"


def check_each(functions: list[Callable], *arguments: torch.Tensor) -> None:
    """Alone, one plan for each; on GPUs, where a plan takes seconds to compile, in one."""
    if own_device() == "cuda":
        return check_equal(lambda *given: tuple(f(*given) for f in functions), *arguments)
    for function in functions:
        check_equal(function, *arguments)


def sizes_of(choice: random.Random, first: int) -> tuple[int, ...]:
    """Of one to three dimensions; the first one is a multiple of `first`."""
    return (first * choice.randint(1, 5), *(choice.randint(1, 40) for _ in range(choice.randint(0, 2))))


def gathered(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """Along dimension 0."""
    x = x if own_device() == "cpu" else x.contiguous()  # torch 2.11 asks for it there
    return funcol.wait_tensor(torch.ops._c10d_functional.all_gather_into_tensor(x, group.size(), group.group_name))


def dtypes_of(world: int, floating: bool) -> list[torch.dtype]:
    return [d for d in (DTYPES if world == 2 else DTYPES[::3]) if d.is_floating_point == floating]


def reductions(rank: int, world: int, floating: bool = True) -> None:
    choice = random.Random(7)
    group = dist.group.WORLD
    for dtype in dtypes_of(world, floating):
        ops = [op for op in REDUCTIONS if dtype != torch.bool or op != "avg"]
        x = ranks_values(rank, sizes_of(choice, world), dtype, choice.randint(0, 99))
        check_each([lambda x, op=op: funcol.all_reduce(x, op, group) for op in ops], x)
        x = ranks_values(rank, sizes_of(choice, world), dtype, choice.randint(0, 99))
        check_each([lambda x, op=op: funcol.reduce_scatter_tensor(x, op, 0, group) for op in ops], x)
    if not floating:
        x = ranks_values(rank, (6, 5), torch.int32, 3)
        check_each([lambda x, op=op: funcol.all_reduce(x, op, group) for op in ("band", "bor", "bxor")], x)


def reductions_of_integers(rank: int, world: int) -> None:
    reductions(rank, world, floating=False)


def not_numbers(rank: int, world: int) -> None:
    """Minimum and maximum: numbers win, as in the group's own calls."""
    x = ranks_values(rank, (64,), torch.float32, 1)
    x[rank::3] = float("nan")
    x[60:] = float("nan")
    for op in ("min", "max"):
        want = funcol.all_reduce(x, op, dist.group.WORLD)
        got = compiled(lambda x, op=op: funcol.all_reduce(x, op, dist.group.WORLD))(x)
        assert torch.equal(want.isnan(), got.isnan()) and torch.equal(want.nan_to_num(), got.nan_to_num())


def moves(rank: int, world: int, floating: bool = True) -> None:
    choice = random.Random(8)
    group = dist.group.WORLD
    for dtype in dtypes_of(world, floating):
        x = ranks_values(rank, sizes_of(choice, world), dtype, choice.randint(0, 99))
        from_each = [lambda x, source=source: funcol.broadcast(x, source, group) for source in range(world)]
        # eager's own all-to-all of CUDA tensors takes none with other strides
        exchanged = lambda x: funcol.all_to_all_single(x.contiguous(), None, None, group)
        to_all = [lambda x: gathered(x, group), exchanged]
        check_each([*to_all, *from_each], x)
        y = ranks_values(rank, (4, 3 * world), dtype, 5)
        check_each([lambda y, f=f: f(y.t()) for f in to_all], y)
        z = ranks_values(rank, (), dtype, 6)  # an element of each rank
        check_equal(lambda z: gathered(z, group), z)


def moves_of_integers(rank: int, world: int) -> None:
    moves(rank, world, floating=False)


def coalesced(rank: int, world: int) -> None:
    group = dist.group.WORLD
    a, b = ranks_values(rank, (2 * world, 5), torch.float32, 1), ranks_values(rank, (world, 3), torch.float32, 2)
    check_equal(lambda a, b: funcol.all_reduce_coalesced([a, b], "sum", group), a, b)
    check_equal(lambda a, b: funcol.all_gather_into_tensor_coalesced([a, b], group), a, b)
    check_equal(lambda a, b: funcol.all_gather_into_tensor_coalesced([a[1, 2], b], group), a, b)
    check_equal(lambda a, b: funcol.reduce_scatter_tensor_coalesced([a, b], "avg", [0, 0], group), a, b)


def in_place(rank: int, world: int) -> None:
    """dist.all_reduce and its like, which Dynamo writes as functional collectives and copies."""

    def function(x):
        y = x * 2
        dist.all_reduce(y)
        whole = torch.empty(world * x.shape[0], x.shape[1], device=x.device)
        dist.all_gather_into_tensor(whole, y)
        first = torch.empty(world, device=x.device)
        dist.all_gather_into_tensor(first, y[0, 0])
        part = torch.empty_like(x)
        dist.reduce_scatter_tensor(part, whole)
        other = torch.empty_like(whole)
        dist.all_to_all_single(other, whole)
        return y, whole, first, part, other

    check_equal(function, ranks_values(rank, (3, 7), torch.float32, 1))


def argument_in_place(rank: int, world: int) -> None:
    """The argument itself is reduced."""

    def function(x):
        dist.all_reduce(x)
        return x + 1

    x = ranks_values(rank, (5, 6), torch.float32, 1)
    fast, other = compiled(function), x.clone()
    for _ in range(3):
        want, got = function(x), fast(other)
        assert torch.equal(want, got) and torch.equal(x, other)


def exchanges(run: Callable, *arguments) -> tuple[list[dict], int]:
    """Of the plan that the call compiles, and the bytes of all its boxes."""
    with ark_torch.records.recording() as records:
        run(*arguments)
    (stats,) = (segment.executable.stats() for record in records for segment in record.segments)
    return stats["exchanges"], stats["box_bytes"]


def large_sizes(choice: random.Random, least: int) -> list[tuple[int, ...]]:
    """Around `least` elements, the first below; up to twice as many, of two dimensions."""
    rows = choice.randint(2, 40)
    return [(least - 1,), (least,), (least + 1,), (rows, choice.randint(least // rows + 1, 2 * least // rows))]


def in_two_steps(rank: int, world: int) -> None:
    """Large all-reduces: the same bits, and boxes of twice the value (for even launches, as much for odd ones) whatever
    the number of ranks."""
    choice = random.Random(9)
    group, least = dist.group.WORLD, lower_collective.TWO_STEP_BYTES
    cases = [(torch.float32, "sum"), (torch.bfloat16, "avg"), (torch.int32, "max"), (torch.float64, "product")]
    for dtype, op in cases:
        for sizes in large_sizes(choice, least // dtype.itemsize):
            x = ranks_values(rank, sizes, dtype, choice.randint(0, 99))
            function = lambda x, op=op: funcol.all_reduce(x, op, group)
            found, box_bytes = exchanges(check_equal, function, x)
            steps = 2 if world >= lower_collective.TWO_STEP_RANKS and x.nbytes >= least else 1
            assert [e["parts"] for e in found] == [True, False][2 - steps :]
            most = 2 * (2 * (x.nbytes + 512 * world) if steps == 2 else world * (x.nbytes + 256))
            assert x.nbytes <= box_bytes <= most, f"{sizes} {dtype}: boxes of {box_bytes} bytes"
    x = ranks_values(rank, (least // 64, 24), torch.float32, 5)
    check_equal(lambda x: funcol.all_reduce(x.t(), "sum", group), x)
    got = compiled(lambda x: funcol.all_reduce(x, "sum", group))(x)
    assert all(torch.equal(other, got) for other in gathered(got, group).chunk(world))


def two_steps_in_a_graph(rank: int, world: int) -> None:
    """What does not depend on a large all-reduce runs meanwhile. Sizes that are symbols have one step."""
    group, rows = dist.group.WORLD, lower_collective.TWO_STEP_BYTES // 1024
    x, a, b = (ranks_values(rank, sizes, torch.float32, 3) for sizes in ((rows, 256), (64, 128), (128, 128)))

    def function(x, a, b):
        y = funcol.all_reduce(x * 0.5, "sum", group)
        return y + 1, torch.relu(a @ b)

    found, _ = exchanges(compiled(function), x, a, b)
    assert any("mm+relu" in e["meanwhile"] for e in found) and len(found) == 2
    torch._dynamo.reset()
    of_symbols = torch.compile(lambda x: funcol.all_reduce(x * 2, "sum", group), backend="ark", dynamic=True)
    found, _ = exchanges(of_symbols, x)
    assert len(found) == 1 and not found[0]["parts"]


def residual_layers(x_dtype: torch.dtype, sent: torch.dtype, dtype: torch.dtype) -> Callable:
    """Layers with a residual of the first type, of whole numbers: every rounding shows."""

    def function(x, y, *weights):
        for row, column in zip(weights[::2], weights[1::2]):
            part = torch.nn.functional.linear(y, row).to(sent)
            x = x + funcol.all_reduce(part, "sum", dist.group.WORLD).to(x_dtype)
            z = x.float()
            few = z - (z / 8).floor() * 8 + 0 * z.amax(-1, keepdim=True)  # a reduction, as norms have
            y = torch.nn.functional.linear(few.to(dtype), column).clamp(-2, 2)
        return y, x

    return function


def kept_sums(rank: int, world: int) -> None:
    """Residuals that a later product stores (planner/fuse/late_sums.h), of another type than what is sent or than what
    is multiplied."""
    bf16, f16, f32 = torch.bfloat16, torch.float16, torch.float32
    whole = lambda sizes, seed, most: (ranks_values(rank, sizes, f32, seed) * most).round()
    for rows, types in [(1, (bf16, f32, bf16)), (4, (f32, bf16, bf16)), (1, (bf16, f16, f16)), (4, (f16, f16, bf16))]:
        sizes = [(64, 32), (32, 64)] * 3
        layers = [whole(each, seed, 1).clamp(-1, 1).to(types[-1]) for seed, each in enumerate(sizes)]
        x = funcol.wait_tensor(funcol.broadcast(whole((rows, 64), 9, 700).to(types[0]), 0, dist.group.WORLD))
        y = whole((rows, 32), 10, 1).clamp(-2, 2).to(types[-1])
        check_equal(residual_layers(*types), x, y, *layers, launches=1)


ALONE = [
    reductions,
    reductions_of_integers,
    not_numbers,
    moves,
    moves_of_integers,
    coalesced,
    in_place,
    argument_in_place,
]


def alone(rank: int, world: int) -> dict:
    large = [in_two_steps, two_steps_in_a_graph] if world >= lower_collective.TWO_STEP_RANKS else [kept_sums]
    return run_each(ALONE + large, rank, world)


@pytest.mark.parametrize("world", [2, 4])
def test_alone(world):
    for of_rank in values(run_ranks(alone, world, seconds=20)):
        for name, (status, value) in of_rank.items():
            assert status == "ok", f"{name}: {value}"
