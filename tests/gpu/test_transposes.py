"""Pointwise tasks that read operands by columns, through tiles of shared memory: bit for bit eager's."""

from __future__ import annotations

import itertools

import pytest
import torch

from ark_torch.backend import ark

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DTYPES = [torch.uint8, torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int64]


def check(body, *inputs):
    torch._dynamo.reset()
    compiled = torch.compile(body, backend=ark, options={"strict": True}, dynamic=False)
    with torch.no_grad():
        wanted = body(*inputs)
        for _ in range(2):  # what lies in shared memory and in outputs differs the second time
            torch.testing.assert_close(compiled(*inputs), wanted, rtol=0, atol=0)


def values(shape, dtype) -> torch.Tensor:
    return torch.randint(-8, 8, shape, device="cuda").to(dtype)  # exact in every type


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "shape", [(64, 64), (16, 16), (129, 257), (513, 1024), (1024, 520), (4095, 97), (17, 4099), (4095, 4097)], ids=str
)
def test_matrices(shape, dtype):
    check(lambda x: (x.t() * 2).contiguous(), values(shape, dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_permutes(dtype):
    x = values((20, 3, 36, 70), dtype)
    for order in itertools.permutations(range(4)):
        check(lambda x, order=order: (x.permute(order) + 1).contiguous(), x)


@pytest.mark.parametrize("order", [(4, 3, 2, 1, 0), (0, 1, 4, 3, 2), (2, 4, 0, 1, 3), (1, 0, 2, 4, 3)], ids=str)
def test_five_dimensions(order):
    check(lambda x: (x.permute(order) * 3).contiguous(), values((3, 17, 19, 4, 33), torch.bfloat16))


@pytest.mark.parametrize("begin", [0, 1, 3, 8])
def test_slices(begin):
    """Columns that begin anywhere, at strides of any length; neighbours of what is written stay as they were."""
    x, out = values((515, 1032), torch.bfloat16), values((1032, 523), torch.bfloat16)
    check(lambda x: x[:, begin : begin + 1001].t() * 2 + 1, x)
    check(lambda x: (x[begin : begin + 300, 1:1002].t() * 2).contiguous(), x)

    def body(x, out):
        out[:, begin : begin + 515].copy_(x.t() * 2)
        return out * 1

    mine, theirs = out.clone(), out.clone()
    torch._dynamo.reset()
    compiled = torch.compile(body, backend=ark, options={"strict": True}, dynamic=False)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, mine), body(x, theirs), rtol=0, atol=0)
    torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(300, 200), (1001, 515), (512, 2048)], ids=str)
def test_several_operands(shape):
    rows, columns = shape
    a, b, c = (values(size, torch.bfloat16) for size in (shape, shape[::-1], shape))
    row, column = values((rows,), torch.float32), values((columns, 1), torch.float32)
    check(lambda a, b: (a.t() + b, a + b.t()), a, b)
    check(lambda a, b, c: a.t() * c.t() + b, a, b, c)
    check(lambda a, row, column: (a.t() * row + column).contiguous(), a, row, column)
    check(lambda a, b, c: (a.t().float() + b).contiguous() * c.t().double(), a, b, c)
    check(lambda a, c: torch.where(a.t() > c.t(), a.t(), 0).contiguous(), a, c)
    check(lambda x, y, z, w: (x.t() + y.t() + z.t() + w.t()).contiguous(), a, c, a.float(), c.double())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(769, 3001), (3001, 769), (33, 20), (24, 1031), (130, 8)], ids=str)
def test_odd_sums(shape, dtype):
    """Rows and columns that begin anywhere, few rows, few columns: what is written and one operand lie along rows."""
    a, b = values(shape, dtype), values(shape[::-1], dtype)
    check(lambda a, b: a + b.t(), a, b)
    check(lambda a, b: (a.t() + b, b.t() * 2), a, b)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(769, 3001), (1021, 515), (128, 1024), (2048, 1024)], ids=str)
def test_side_by_side(shape, dtype):
    """Several copies that do not depend on each other have longer tiles than one."""
    pairs = [(values(shape, dtype), values(shape[::-1], dtype)) for _ in range(6)]

    def body(*inputs):
        return [(b.t() * 2).contiguous() for b in inputs[1::2]], [a + b.t() for a, b in zip(inputs[::2], inputs[1::2])]

    check(body, *(x for pair in pairs for x in pair))


@pytest.mark.parametrize("begin", [1, 3, 7])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_offsets(dtype, begin):
    """Both operands and the result begin off alignment, at strides of their own."""
    a, b, out = (values(size, dtype) for size in ((301, 523), (530, 311), (310, 541)))

    def body(a, b, out):
        part = out[begin : begin + 300, begin + 1 : begin + 520]
        part.copy_(a[:300, :519] + b[begin : begin + 519, :300].t())
        return out + 0

    mine, theirs = out.clone(), out.clone()
    torch._dynamo.reset()
    compiled = torch.compile(body, backend=ark, options={"strict": True}, dynamic=False)
    with torch.no_grad():
        torch.testing.assert_close(compiled(a, b, mine), body(a, b, theirs), rtol=0, atol=0)
    torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_in_place(dtype):
    """The result lies where an operand does."""
    a, b = values((515, 387), dtype), values((387, 515), dtype)
    mine, theirs = a.clone(), a.clone()

    def body(a, b):
        a.add_(b.t())
        return a * 2

    torch._dynamo.reset()
    compiled = torch.compile(body, backend=ark, options={"strict": True}, dynamic=False)
    with torch.no_grad():
        torch.testing.assert_close(compiled(mine, b), body(theirs, b), rtol=0, atol=0)
    torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


def test_broadcast_beside_transposed():
    """Dimensions of stride 0 in operands, beside transposed ones and in these themselves."""
    x, y = values((5, 67, 45), torch.bfloat16), values((45, 67), torch.bfloat16)
    row, plane = values((67,), torch.bfloat16), values((5, 1, 1), torch.float32)
    check(lambda x, y, row: x.transpose(1, 2) + y + row, x, y, row)
    check(lambda x, y, plane: (x.transpose(1, 2) * plane + y).contiguous(), x, y, plane)
    check(lambda x, y: x + y.t(), x, y)  # the transposed operand stands still along the first dimension
    check(lambda x, row: (x.permute(2, 0, 1) + row).contiguous(), x, row)


def test_images():
    """Channels last to channels first, and back."""
    x = values((8, 57, 55, 72), torch.bfloat16)
    check(lambda x: (x.permute(0, 3, 1, 2) * 2).contiguous(), x)
    check(lambda x: (x.permute(0, 2, 3, 1) * 2).contiguous(), x)


def test_chain():
    """Transposes between ops that other workers run."""
    x, weight = values((768, 1030), torch.bfloat16), values((768, 64), torch.bfloat16)

    def body(x, weight):
        turned = (x.t() * 0.5).contiguous()
        return (turned + 1).t().contiguous() + x, (turned - turned.flip(0)).t().contiguous(), weight * 2

    check(body, x, weight)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_sizes_vary(dtype):
    """One kernel for sizes of which some are made of whole tiles."""
    torch._dynamo.reset()

    def body(x):
        return (x.t() * 2).contiguous()

    compiled = torch.compile(body, backend=ark, options={"strict": True}, dynamic=True)
    for shape in [(64, 128), (640, 512), (333, 515), (17, 1025), (1024, 2048), (20, 15)]:
        x = values(shape, dtype)
        torch.testing.assert_close(compiled(x), body(x), rtol=0, atol=0)
