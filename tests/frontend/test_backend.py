"""What torch.compile promises of any backend: names, options, gradients, layouts, aliasing, lifetimes, modes."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
import weakref
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ark_torch.backend import ark, parse_options, record_callables
from ark_torch.options import OPTIONS
from ark_torch.records import REGISTRY, recording
from ark_torch.targets import check_workers
from tests.support.graph_builder import add_relu

ROOT = Path(__file__).resolve().parents[2]


def is_installed() -> bool:
    from importlib.metadata import entry_points

    return any(e.name == "ark" for e in entry_points(group="torch_dynamo_backends"))


@pytest.mark.skipif(not is_installed(), reason="the package is not installed")
def test_resolves_by_name_without_import():
    code = (
        "import sys, torch\n"
        "assert 'ark' in torch._dynamo.list_backends()\n"
        "assert not any(m.startswith('ark_torch') for m in sys.modules)\n"
        "torch.compile(lambda x: x, backend='ark')\n"
        "assert 'ark_torch.backend' in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "mode, options, error, named",
    [
        (None, {"fast": True}, ValueError, "'fast'"),
        ("fastest", None, ValueError, "'fastest' .known: default, reduce-overhead, max-autotune"),
        (None, {"strict": 1}, TypeError, "'strict'"),
        (None, {"workers": True}, TypeError, "'workers'"),
        (None, {"schedule": "random"}, ValueError, "'random'"),
        (None, {"target": "tpu"}, ValueError, "'tpu'"),
        (None, {"workers": 0}, ValueError, "'workers' is 0, expected 1 to 1024"),
        (None, {"workers": 5000}, ValueError, "'workers' is 5000"),
        (None, {"deadline_ms": 0}, ValueError, "'deadline_ms'"),
        (None, {"threads": -1}, ValueError, "'threads'"),
        (None, {"seed": -1}, ValueError, "'seed'"),
        (None, {"seed": 2**64}, ValueError, "'seed'"),
        (None, {"max_executables": 0}, ValueError, "'max_executables'"),
    ],
)
def test_refuses_unknown_options_by_name(mode, options, error, named):
    with pytest.raises(error, match=named):
        parse_options(mode, options)


def test_a_value_out_of_range_reaches_the_caller(executor):
    with pytest.raises(Exception, match="'workers' is 0, expected 1 to 1024"):
        torch.compile(lambda x: x * 2 + 1, backend=ark, options={"workers": 0})(torch.ones(4))


@pytest.mark.parametrize(
    "variable, expected", [("ARK_VERIFY", "once, full, structure"), ("ARK_LOG", "error, warn, info, debug")]
)
def test_refuses_unknown_values_of_the_environment(variable, expected):
    """The caller gets the error, of a compilation and of a process group; nothing runs through ATen instead."""
    code = (
        "import torch, torch.distributed as dist, ark_torch\n"
        "calls = (lambda: torch.compile(lambda x: x * 2 + 1, backend='ark')(torch.ones(4)),\n"
        "         lambda: dist.init_process_group('ark', store=dist.HashStore(), rank=0, world_size=1))\n"
        "for call in calls:\n"
        "    try:\n"
        "        call()\n"
        "        print('no error')\n"
        "    except Exception as error:\n"
        "        print(error)\n"
    )
    env = os.environ | {"PYTHONPATH": str(ROOT), variable: "bogus"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert done.stdout.count(f'{variable}: expected one of {expected}, got "bogus"') == 2, done.stdout + done.stderr


def test_refuses_more_workers_than_multiprocessors(monkeypatch):
    few = type("Few", (), {"multi_processor_count": 8})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: few)
    check_workers(8, "cuda", torch.device("cuda"))
    check_workers(9, "host", torch.device("cpu"))
    with pytest.raises(ValueError, match="'workers' is 9, expected at most 8"):
        check_workers(9, "cuda", torch.device("cuda"))


def test_ranges_are_those_of_the_extension():
    """Both ends are taken, what lies beyond is refused, by the front end and by the extension below it."""
    _C = pytest.importorskip("ark_torch._C")
    graph = add_relu([4])
    for name, option in OPTIONS.items():
        if option.type is not int:
            continue
        assert name in ark.__doc__
        for value in (option.low, option.high):
            parse_options(None, {name: value})
            _C.CompiledGraph(graph, "host", 0, {name: value})
        for value in (option.low - 1, option.high + 1):
            with pytest.raises(ValueError, match=name):
                parse_options(None, {name: value})
            with pytest.raises(ValueError, match=name):
                _C.CompiledGraph(graph, "host", 0, {name: value})


def test_help_lists_every_option_with_its_default():
    for name, option in OPTIONS.items():
        assert name in ark.__doc__ and option.meaning.split()[0] in ark.__doc__
    assert "1 to 1024; default 132" in " ".join(ark.__doc__.split())


def test_help_is_found_after_an_import_of_the_package():
    code = (
        "import sys, ark_torch\n"
        "assert 'ark_torch.backend' not in sys.modules\n"
        "assert 'deadline_ms' in ark_torch.backend.ark.__doc__\n"
        "assert not hasattr(ark_torch, 'bakcend')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_refuses_target_that_does_not_fit(executor):
    with pytest.raises(Exception, match="cuda.*cpu"):
        torch.compile(lambda x: x + 1, backend=ark, options={"target": "cuda"})(torch.ones(3))


class Block(nn.Module):
    def __init__(self, width=24, heads=3):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(x)


def gradients(model, x, call):
    model.zero_grad()
    call(x).square().mean().backward()
    return [p.grad.clone() for p in model.parameters()]


def test_gradients_match_eager(executor):
    model, x = Block(), torch.randn(2, 10, 24)
    wanted = gradients(model, x, model)
    actual = gradients(model, x, torch.compile(model, backend=ark, options={"strict": True}))
    torch.testing.assert_close(actual, wanted, rtol=1e-4, atol=1e-5)


def test_one_artifact_serves_equal_modules(executor):
    blocks = nn.ModuleList(Block() for _ in range(4))
    with recording() as records:
        compiled = torch.compile(Block.forward, backend=ark)
        x = torch.randn(2, 10, 24)
        with torch.no_grad():
            for block in blocks:
                torch.testing.assert_close(compiled(block, x), block(x), rtol=1e-4, atol=1e-5)
    assert len(records) == 1


def test_swapped_parameters_are_seen(executor):
    model, x = nn.Linear(8, 8), torch.randn(3, 8)
    compiled = torch.compile(model, backend=ark)
    with torch.no_grad():
        compiled(x)
        model.load_state_dict({k: torch.randn_like(v) for k, v in model.state_dict().items()}, assign=True)
        torch.testing.assert_close(compiled(x), model(x))
        model.weight.data = torch.randn(8, 8)
        torch.testing.assert_close(compiled(x), model(x))


def test_earlier_outputs_stay(executor):
    compiled = torch.compile(lambda x: (x * 2, (x + 1).sum(0)), backend=ark)
    inputs = [torch.randn(5, 7) for _ in range(10)]
    held = [compiled(x) for x in inputs]
    for x, (a, b) in zip(inputs, held):
        torch.testing.assert_close(a, x * 2)
        torch.testing.assert_close(b, (x + 1).sum(0))
    assert len({a.data_ptr() for a, _ in held}) == 10


def test_two_forwards_before_one_backward(executor):
    model, xs = Block(), [torch.randn(2, 6, 24) for _ in range(2)]
    (model(xs[0]).sum() + model(xs[1]).square().sum()).backward()
    wanted = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    compiled = torch.compile(model, backend=ark)
    (compiled(xs[0]).sum() + compiled(xs[1]).square().sum()).backward()
    torch.testing.assert_close([p.grad for p in model.parameters()], wanted, rtol=1e-4, atol=1e-4)


def test_layouts_of_outputs(executor):
    def body(x, y):
        return (
            x.t() + 1,
            (x @ y).transpose(0, 1),
            x.new_empty(0) if False else y[:, ::2],
            torch.empty_like(x.t()).zero_(),
        )

    x, y = torch.randn(4, 6), torch.randn(6, 8)
    for a, e in zip(torch.compile(body, backend=ark)(x, y), body(x, y)):
        torch.testing.assert_close(a, e)
        assert (a.stride(), a.dtype, a.device, a.storage_offset()) == (
            e.stride(),
            e.dtype,
            e.device,
            e.storage_offset(),
        )


def test_outputs_alias_what_eager_aliases(executor):
    def body(x):
        y = x * 2
        return x, x[1:], y, y.view(-1), x.view(-1)

    x = torch.randn(4, 6)
    a = torch.compile(body, backend=ark)(x)
    assert a[0] is x
    assert a[1].data_ptr() == x[1:].data_ptr() and a[4].data_ptr() == x.data_ptr()
    assert a[2].data_ptr() == a[3].data_ptr()
    a[1].zero_()
    assert x[1:].abs().sum() == 0


def test_strided_arguments_and_tangents(executor):
    def body(x):
        return x.t() * 2

    x = torch.randn(5, 6, requires_grad=True)
    compiled = torch.compile(body, backend=ark)
    out = compiled(x)
    tangent = torch.randn(5, 6).t()  # other strides than those the backward was traced with
    (actual,) = torch.autograd.grad(out, x, tangent)
    torch.testing.assert_close(actual, tangent.t() * 2)
    expanded = torch.randn(1, 6).expand(5, 6)
    torch.testing.assert_close(compiled(expanded), body(expanded))


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_grad_modes(executor, context):
    model, x = Block(), torch.randn(2, 6, 24)
    compiled = torch.compile(model, backend=ark)
    with context():
        actual, wanted = compiled(x), model(x)
    assert actual.requires_grad == wanted.requires_grad
    torch.testing.assert_close(actual, wanted, rtol=1e-4, atol=1e-5)


def test_autocast(executor):
    model, x = Block(), torch.randn(2, 6, 24)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual, wanted = torch.compile(model, backend=ark)(x), model(x)
    assert actual.dtype == wanted.dtype
    torch.testing.assert_close(actual, wanted, rtol=2e-2, atol=2e-2)


def test_manual_seed_reproduces(executor):
    model = nn.Sequential(nn.Linear(32, 64), nn.Dropout(0.25), nn.Linear(64, 64), nn.Dropout(0.5))
    compiled = torch.compile(model, backend=ark)
    x = torch.randn(50, 32)
    torch.manual_seed(7)
    first, second = compiled(x), compiled(x)
    torch.manual_seed(7)
    torch.testing.assert_close(compiled(x), first, rtol=0, atol=0)
    assert not torch.equal(first, second)
    torch.testing.assert_close(compiled(x), second, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dropout_statistics_and_gradient(executor, dtype):
    x = torch.ones(400, 100, dtype=dtype, requires_grad=True)
    out = torch.compile(lambda x: F.dropout(x, 0.3), backend=ark, options={"strict": True})(x)
    kept = (out != 0).float().mean()
    assert abs(kept - 0.7) < 0.02
    out.sum().backward()
    assert torch.equal(x.grad != 0, out != 0)
    rows = (out != 0).float().mean(1)
    assert rows.std() > 0.01  # not the same pattern everywhere


def test_random_distributions(executor):
    def body(x):
        return (
            torch.rand_like(x),
            torch.randn_like(x),
            torch.rand(300, 200),
            torch.bernoulli(torch.full((300, 200), 0.2)),
        )

    u, n, v, b = torch.compile(body, backend=ark)(torch.empty(300, 200))
    for sample in (u, v):
        assert (
            0 <= sample.min()
            and sample.max() < 1
            and abs(sample.mean() - 0.5) < 0.01
            and abs(sample.var() - 1 / 12) < 0.005
        )
    assert abs(n.mean()) < 0.02 and abs(n.std() - 1) < 0.02
    assert abs(b.mean() - 0.2) < 0.01
    assert abs((u * v).mean() - 0.25) < 0.01  # streams of their own


def test_nothing_is_kept(executor):
    model = Block()
    compiled = torch.compile(model, backend=ark)
    x = torch.randn(2, 6, 24)
    compiled(x).sum().backward()
    callables = REGISTRY.graphs[:]
    segments = [weakref.ref(s) for r in callables for s in r.segments]
    assert segments
    del compiled, callables
    torch.compiler.reset()
    gc.collect()
    assert all(s() is None for s in segments)


def test_arguments_are_released_early(executor):
    """The boxed callable clears its list."""
    callables = []
    with record_callables(callables), torch.no_grad():
        torch.compile(lambda x, y: (x + y).sum(), backend=ark)(torch.ones(3), torch.ones(3))
    arguments = [torch.ones(3), torch.ones(3)]
    kept = weakref.ref(arguments[0])
    assert callables[0](arguments)[0].item() == 6
    assert arguments == [] and kept() is None


def test_many_calls_do_not_grow(executor):
    compiled = torch.compile(lambda x: x * 2 + 1, backend=ark)
    x = torch.ones(4)
    compiled(x)
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(300):
        compiled(x)
    gc.collect()
    assert len(gc.get_objects()) - before < 50


def test_no_outputs_and_constant_outputs(executor):
    compiled = torch.compile(lambda x: (None, 3, x, torch.zeros(2)), backend=ark)
    a = compiled(torch.ones(2))
    assert a[0] is None and a[1] == 3 and torch.equal(a[3], torch.zeros(2))


def test_threads_compile_and_run(executor):
    from concurrent.futures import ThreadPoolExecutor

    def result(compiled, x):
        for _ in range(1000):  # torch refuses calls while any other thread traces: its flag is one for all of them
            try:
                return compiled(x)
            except RuntimeError as error:
                if "using FX to symbolically trace" not in str(error):
                    raise
                time.sleep(0.01)
        raise TimeoutError("torch says that a thread traces, for 10 seconds")

    def work(i):
        x = torch.full((4, i + 2), float(i))
        return torch.equal(result(torch.compile(lambda x: x * 2 + i, backend=ark, dynamic=False), x), x * 2 + i)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(8)))
