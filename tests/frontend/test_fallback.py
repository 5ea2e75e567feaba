"""What ark does not run natively runs through ATen: right, counted, explained, refused under strict; also when the
planner declines late."""

from __future__ import annotations

import logging
import pickle
import re
import traceback

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ark_torch.segment
from ark_torch.backend import ark, record_callables
from ark_torch.errors import ArgumentRefused, NodeUnsupported, TooLong, Unsupported
from ark_torch.explain import explain, report
from ark_torch.records import REGISTRY, recording
from ark_torch.segment import blamed_node
from tests.conftest import has_extension, use_reference
from tests.support.graph_builder import GraphBuilder
from tests.support.reference_eval import ReferenceGraph


def compile_and_check(body, *inputs, **options):
    with recording() as records:
        actual = torch.compile(body, backend=ark, options=options)(*inputs)
    torch.testing.assert_close(actual, body(*inputs), rtol=1e-4, atol=1e-5)
    return records


def mixed(x):
    y = x * 2 + 1
    values, indices = torch.sort(y, 1)
    z = values.cumprod(1) * y
    return z.sum(), indices + 1


def test_mixed_graph_is_right_and_counted(executor):
    (record,) = compile_and_check(mixed, torch.randn(5, 9))
    assert record.fallbacks == {"aten.sort.default": 1, "aten.cumprod.default": 1}
    assert len(record.segments) == 2 and record.num_aten == 2


def test_strict_names_the_op(executor):
    with pytest.raises(Exception, match="aten.sort.default.*aten.cumprod.default"):
        torch.compile(mixed, backend=ark, options={"strict": True})(torch.randn(5, 9))


def test_strict_is_one_short_error(executor, caplog):
    """Nothing runs, so no line says that something runs through ATen; the stack ends where the backend is called."""
    with caplog.at_level(logging.WARNING), pytest.raises(Exception, match="strict: graph") as caught:
        torch.compile(mixed, backend=ark, options={"strict": True})(torch.randn(5, 9))
    assert caplog.records == []
    files = [frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert [f.split("/")[-1] for f in files if "/ark_torch/" in f] == ["backend.py"]


def test_strict_is_one_short_error_in_the_backward_pass(executor, caplog):
    """Of dynamic sizes, AOTAutograd compiles it with the forward pass, and makes a warning with a stack of an error."""
    x = torch.randn(3, 3, requires_grad=True)
    with caplog.at_level(logging.WARNING):
        out = torch.compile(lambda x: x.prod(), backend=ark, dynamic=True, options={"strict": True})(x)
        with pytest.raises(Unsupported, match="^strict: graph.*_backward needs ATen for: aten.cumprod.default"):
            out.backward()
    assert caplog.records == []


def test_fallbacks_name_the_users_line(executor, caplog):
    with caplog.at_level(logging.WARNING, logger="ark"):
        text = str(explain(mixed, torch.randn(5, 9)))
    line = mixed.__code__.co_firstlineno + 2
    place = rf"aten.sort.default \(no .*op\) \(values, indices = torch.sort\(y, 1\), at .*test_fallback.py:{line}\)"
    assert re.search(rf"1  {place}$", text, re.M)
    assert sum(bool(re.search(place, r.getMessage())) for r in caplog.records) == 1
    with pytest.raises(Exception, match=rf"strict: graph.* needs ATen for: {place} x1, aten.cumprod"):
        explain(mixed, torch.randn(5, 9), ark_options={"strict": True})


OF_ITEM = r"an .item\(\) \(native where torch._check\(n >= 0\) and torch._check\(n <= size\) of that number precede\)"
CONDITIONS = [
    (lambda x: F.conv2d(x.view(1, 1, 4, 4), torch.ones(2, 1, 1, 1)), "aten.convolution.default.*not 1 x 1"),
    (lambda x: x.expand(2048, 16).reshape(-1).cumsum(0), "cumsum .*at most 4194304"),
    (lambda x: x.scatter(0, torch.tensor([0, 0, 1]), x[:3]), "scatter of several indices per row.*native: one per row"),
    (
        lambda x: x[: x.int().sum().item()] * 2,
        rf"aten.slice.Tensor, whose size depends on {OF_ITEM} \(.*test_fallback.py:",
    ),
    (lambda x: x[x.int().max().item() + 1 :] * 2, f"aten.slice.Tensor, whose size depends on {OF_ITEM}"),
    (lambda x: x[: x.int().tolist()[0]] * 2, f"aten.slice.Tensor, whose size depends on {OF_ITEM}"),
    (lambda x: x[x > 0], "a mask as index.*depends on values.*torch.where"),
    (
        lambda x: torch.nonzero(x) * 2,
        "result of aten.nonzero.default, whose size depends on values \\(.*test_fallback.py:",
    ),
]


@pytest.mark.parametrize("body, message", CONDITIONS)
def test_messages_have_the_condition(executor, body, message):
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        with pytest.raises(Exception, match=message):
            torch.compile(body, backend=ark, options={"strict": True})(torch.randn(16))


def branch(x):
    return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x * 2, (x,))


def said(x):
    torch.ops.aten._print("")
    return x + 1


@pytest.mark.parametrize(
    "body, message",
    [
        (lambda x: torch.topk(x, 2)[0], r"aten.topk.default \(no plan computes this op\) \("),
        (branch, r"cond \(no plan computes this op\) \("),
        (said, r"with_effects of aten._print.default \(no plan computes this op\) \("),
        (nn.Sequential(nn.Unflatten(0, (1, 4, 4)), nn.MaxPool2d(2)), r"max_pool2d.* \(no plan computes this op\)"),
        (lambda x: x * 1j, r"dtype complex64 \(native: bool, .*float64\)"),
        (lambda x: x.long() ** x.long(), r"\(native: a constant of 1 to 4\)"),
        (lambda x: x.long()[None] @ x.long()[:, None], r"matmul of torch.int64 and .* \(native: one floating type\)"),
    ],
    ids=["op", "cond", "effect", "module", "type", "exponent", "product"],
)
def test_messages_say_what_is_native(executor, caplog, body, message):
    x = torch.ones(16)
    with pytest.raises(Exception, match=message):
        torch.compile(body, backend=ark, options={"strict": True})(x)
    REGISTRY.logged.clear()
    with caplog.at_level(logging.WARNING, logger="ark"):
        found = str(explain(body, x))
    assert re.search(message, found) and re.search(message, caplog.text)


def checked(n, size):
    torch._check(n >= 0)
    torch._check(n <= size)
    return n


@pytest.mark.parametrize(
    "body",
    [
        lambda x, i: x[: checked(i.sum().item(), x.shape[0])] * 2,
        lambda x, i: x[: checked(i.max().item() + 1, x.shape[0])] * 2,
        lambda x, i: x[checked(i[0].item(), x.shape[0]) :] * 2,
        lambda x, i: x.narrow(0, 0, checked(i[1].item(), x.shape[0])) * 2,
    ],
    ids=["end", "computed end", "start", "length"],
)
def test_what_the_message_of_item_advises_is_native(executor, body):
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compile_and_check(body, torch.randn(16), torch.tensor([2, 3]), strict=True)


def test_each_cause_is_logged_once(executor, caplog):
    with caplog.at_level(logging.WARNING, logger="ark"):
        compile_and_check(mixed, torch.randn(5, 9))
        torch._dynamo.reset_code_caches()
        compile_and_check(lambda x: torch.sort(x)[0], torch.randn(6))
    lines = [r.getMessage() for r in caplog.records if r.name == "ark" and "aten.sort" in r.getMessage()]
    assert len(lines) == 1


def test_convolution_and_pooling(executor):
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.MaxPool2d(2)
    ).eval()
    with torch.no_grad():
        compile_and_check(model, torch.randn(2, 3, 12, 12))


def test_complex_and_sparse(executor):
    compile_and_check(lambda x: torch.fft.fft(x).abs() + 1, torch.randn(8))
    sparse = torch.eye(4).to_sparse()
    compile_and_check(lambda x: torch.sparse.mm(sparse, x) * 2, torch.randn(4, 3))


def test_float8(executor):
    compile_and_check(lambda x: x.to(torch.float8_e4m3fn).float() + 1, torch.randn(8))


def test_boolean_index(executor):
    compile_and_check(lambda x: x[x > 0] * 2, torch.randn(30))


def test_custom_op(executor):
    @torch.library.custom_op("ark_test::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    twice.register_fake(lambda x: torch.empty_like(x))

    @torch.library.custom_op("ark_test::bump", mutates_args=("x",))
    def bump(x: torch.Tensor) -> None:
        x.add_(1)

    def body(x):
        y = x * 3
        bump(y)
        return twice(y + 1) - 1

    compile_and_check(body, torch.randn(4))


def test_higher_order_op(executor):
    def body(x):
        return torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, (x,)) + 1

    for x in (torch.ones(3), -torch.ones(3)):
        torch._dynamo.reset()
        compile_and_check(body, x)


class Declines(ReferenceGraph):
    """A planner that takes no sigmoid: it blames the node, or nobody."""

    names_node = True

    def prepare(self, symbols) -> None:
        for node in self.graph["nodes"]:
            if node["attrs"].get("opcode") == "sigmoid":
                text = f"{self.graph['nodes'][0]['name']} and {node['name']}: no task kind"  # names prove nothing
                raise NodeUnsupported(text, node["name"]) if self.names_node else Unsupported(text)


@pytest.mark.parametrize("names_node", [True, False])
def test_planner_declines_a_node(monkeypatch, names_node):
    kind = type("Planner", (Declines,), {"names_node": names_node})
    monkeypatch.setattr(ark_torch.segment, "make_executable", lambda *args: kind(*args))
    (record,) = compile_and_check(lambda x: torch.sigmoid(x * 2) + x.sum(), torch.randn(5, 6))
    assert sum(record.fallbacks.values()) == (1 if names_node else 4)
    assert not names_node or record.fallbacks == {"mul and sigmoid: no task kind": 1}


@pytest.mark.skipif(not has_extension(), reason="the extension is not built")
def test_the_planner_blames_a_node_in_a_field():
    """Whatever words its message has."""
    from ark_torch import _C

    g = GraphBuilder("empty")
    x, y = g.input("x", [0, 4]), g.input("y", [3, 4])
    named_like_a_word = g.pointwise("exp", [y], "elements", [3, 4])
    largest = g.node("reduce", [x], g.value("largest", [1, 4]), reduce="max", dims=[0], keepdim=True)
    with pytest.raises(NodeUnsupported, match="^node 'largest': max of no elements$") as caught:
        _C.CompiledGraph(g.returns(named_like_a_word, largest), "host").prepare([])
    assert caught.value.node == "largest"
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), str(again), again.node) == (NodeUnsupported, str(caught.value), "largest")


def test_only_a_node_of_the_step_is_blamed():
    graph = torch.fx.Graph()
    nodes = [graph.call_function(torch.exp, (), name=name) for name in ("exp", "sum_1")]
    assert blamed_node(NodeUnsupported("exp and sum_1: no", "sum_1"), nodes) is nodes[1]
    assert blamed_node(TooLong("exp", "operands", 2, 1, "exp"), nodes) is nodes[0]
    for error in (NodeUnsupported("exp", "cos"), TooLong("exp", "operands", 2, 1), Unsupported("exp: no")):
        assert blamed_node(error, nodes) is None


class SmallOnly(ReferenceGraph):
    """A planner that takes sizes up to 10; `problem` is what it says of others."""

    problem = Unsupported("too large")

    def prepare(self, symbols) -> None:
        if any(x > 10 for x in symbols):
            raise self.problem

    def __call__(self, inputs):
        self.prepare([x for x in inputs if type(x) is int])
        return super().__call__(inputs)


@pytest.fixture
def small_only(monkeypatch):
    """The executables made; small_only.problem may be set."""
    kind, made = type("SmallOnly", (SmallOnly,), {}), []
    monkeypatch.setattr(ark_torch.segment, "make_executable", lambda *args: made.append(kind(*args)) or made[-1])
    kind.made = made
    return kind


def double_and_sum(x):
    return F.dropout(x * 2, 0.5, False).sum(0)


def test_planner_declines_one_size(small_only):
    """A declined set of symbols runs through ATen; the others stay native."""
    body = torch.compile(double_and_sum, backend=ark, dynamic=True)
    for n in (5, 20, 7, 20):
        x = torch.randn(n, 3)
        torch.testing.assert_close(body(x), (x * 2).sum(0))
    assert small_only.made[0].runs == 2
    assert REGISTRY.runtime_fallbacks == {"too large": 1}
    assert report().fallbacks == {"too large": 1}


def test_strict_holds_for_later_sizes(small_only):
    body = torch.compile(double_and_sum, backend=ark, dynamic=True, options={"strict": True})
    body(torch.randn(5, 3))
    for _ in range(2):
        with pytest.raises(Unsupported, match="strict: graph.* too large"):
            body(torch.randn(20, 3))
    body(torch.randn(7, 3))
    assert REGISTRY.runtime_fallbacks == {}


def test_internal_error_at_a_later_size(small_only, caplog):
    small_only.problem = RuntimeError("wait without an arrival")
    body = torch.compile(double_and_sum, backend=ark, dynamic=True)
    with caplog.at_level(logging.ERROR, logger="ark"):
        for n in (5, 20, 20):
            x = torch.randn(n, 3)
            torch.testing.assert_close(body(x), (x * 2).sum(0))
    assert small_only.made[0].runs == 1
    assert report().fallbacks == {"internal error: wait without an arrival": 1}
    assert sum(r.name == "ark" and r.levelno == logging.ERROR for r in caplog.records) == 1


def test_an_error_of_the_run_itself_is_raised(monkeypatch):
    class Fails(ReferenceGraph):
        def __call__(self, inputs):
            raise RuntimeError("the device is gone")

    monkeypatch.setattr(ark_torch.segment, "make_executable", lambda *args: Fails(*args))
    with pytest.raises(RuntimeError, match="the device is gone"):
        torch.compile(lambda x: x * 2 + 1, backend=ark)(torch.randn(4))


def written_in_place(x):
    x.mul_(2).add_(1)
    return x.sum(0)


def compiled_in_place(**options):
    """The bare callable: behind it nobody sees to it that strides are those of the first call."""
    callables = []
    with record_callables(callables), torch.no_grad():
        torch.compile(written_in_place, backend=ark, options=options)(torch.randn(4, 6))
    return callables[0]


def test_refused_arguments_are_counted_and_logged_once(each_executor, caplog):
    call, base = compiled_in_place(), torch.randn(6, 4)
    segment = call.record.segments[0]
    tries, run = [], segment.executable
    segment.executable = lambda inputs: tries.append(1) or run(inputs)
    with caplog.at_level(logging.WARNING, logger="ark"):
        for _ in range(3):
            x = base.clone().t()
            wanted = x * 2 + 1
            (out,) = call([x])
            torch.testing.assert_close((x, out), (wanted, wanted.sum(0)))
    segment.executable = run
    assert len(tries) == 1, "the same layout is refused again and again"
    (cause,) = report().fallbacks
    assert cause.startswith("arguments refused") and report().fallbacks[cause] == 1
    assert each_executor == "reference" or cause.startswith("arguments refused: input 0 (") and "expected" not in cause
    (line,) = [r.getMessage() for r in caplog.records if r.name == "ark"]
    assert "[1, 4]" in line or "(1, 4)" in line, "expected and actual strides"


def test_a_refused_argument_is_named():
    callables = []
    with record_callables(callables), torch.no_grad():
        torch.compile(written_in_place, backend=ark)(torch.randn(4, 6))
    run = callables[0].record.segments[0].executable
    for argument in (torch.randn(4, 7), torch.randn(4, 6).double(), torch.randn(4, 6, device="meta"), "text"):
        with pytest.raises(ArgumentRefused, match="expected") as caught:
            run([argument])
        assert caught.value.argument.split()[:2] == ["input", "0"] and ":" not in caught.value.argument
        again = pickle.loads(pickle.dumps(caught.value))
        assert again.argument == caught.value.argument and str(again) == str(caught.value)


def test_strict_refuses_arguments_that_need_aten(executor):
    call, x = compiled_in_place(strict=True), torch.randn(6, 4).t()
    before = x.clone()
    with pytest.raises(Unsupported, match="strict: graph"):
        call([x])
    assert torch.equal(x, before)


def test_strict_keeps_the_error_of_an_index(executor):
    if not has_extension():
        pytest.skip("the evaluator has no such error")
    body = torch.compile(lambda x, i: x[i] + 1, backend=ark, options={"strict": True})
    body(torch.randn(4), torch.tensor([1, 2]))
    with pytest.raises(IndexError, match="out of range"):
        body(torch.randn(4), torch.tensor([1, 9]))


def test_explain_counts_what_fell_back_at_run_time(monkeypatch):
    class Never(ReferenceGraph):
        def __call__(self, inputs):
            raise Unsupported("never")

    monkeypatch.setattr(ark_torch.segment, "make_executable", lambda *args: Never(*args))
    assert explain(lambda x: x * 2, torch.randn(3)).fallbacks == {"never": 1}


def test_late_decline_with_random_numbers(monkeypatch):
    class Never(ReferenceGraph):
        def __call__(self, inputs):
            raise Unsupported("never")

    monkeypatch.setattr(ark_torch.segment, "make_executable", lambda *args: Never(*args))
    out = torch.compile(lambda x: F.dropout(x, 0.5), backend=ark)(torch.ones(100, 100))
    assert abs((out != 0).float().mean() - 0.5) < 0.05


def test_internal_error_is_reported_and_survived(monkeypatch, caplog):
    class Broken(ReferenceGraph):
        def prepare(self, symbols):
            raise RuntimeError("wait without an arrival")

    monkeypatch.setattr(ark_torch.segment, "make_executable", lambda *args: Broken(*args))
    with caplog.at_level(logging.ERROR, logger="ark"):
        (record,) = compile_and_check(lambda x: x * 2 + 1, torch.randn(4))
    assert record.internal_errors == ["wait without an arrival"]
    assert any("wait without an arrival" in r.getMessage() for r in caplog.records)
    torch._dynamo.reset()
    with pytest.raises(Exception, match="wait without an arrival"):
        torch.compile(lambda x: x * 2 + 1, backend=ark, options={"strict": True})(torch.randn(4))


def test_wrong_strides_are_copied(monkeypatch):
    """An ATen step whose real result is laid out otherwise than traced."""
    use_reference(monkeypatch)

    @torch.library.custom_op("ark_test::sly", mutates_args=())
    def sly(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).t().contiguous().t()

    sly.register_fake(lambda x: torch.empty_like(x))
    compile_and_check(lambda x: sly(x) + 1, torch.randn(4, 5))


def test_memory_of_aten_steps_is_dropped(executor):
    """`del` after the last use: the emitted source is the evidence."""
    from ark_torch.backend import record_callables

    callables = []
    with record_callables(callables):
        torch.compile(mixed, backend=ark)(torch.randn(5, 9))
    source = callables[0].source
    assert "args.clear()" in source and "del " in source


def test_constant_tensors_are_constants(executor):
    """torch.tensor(2.0) in a model is an attribute of the graph, on the CPU whatever the model's device."""

    def body(x):
        return x * torch.tensor(2.5) + torch.tensor(3), torch.where(x > 0, x, torch.tensor(float("-inf")))

    (record,) = compile_and_check(body, torch.randn(6), strict=True)
    assert len(record.segments) == 1 and len(record.segments[0].lowered.inputs) == 1


def test_dump(executor, tmp_path, monkeypatch):
    monkeypatch.setenv("ARK_DUMP", str(tmp_path))
    compile_and_check(lambda x: x + 1, torch.randn(3))
    assert any(f.name.endswith(".fx.py") for f in tmp_path.iterdir())
    assert any("def call" in f.read_text() for f in tmp_path.glob("*.call.py"))


def test_dump_when_compiling_fails(executor, tmp_path, monkeypatch):
    monkeypatch.setenv("ARK_DUMP", str(tmp_path))
    with pytest.raises(Exception, match="aten.sort"):
        torch.compile(mixed, backend=ark, options={"strict": True})(torch.randn(5, 9))
    assert [f.name.split("_")[-1] for f in tmp_path.glob("*.py")] == ["inference.fx.py"]
    if has_extension():
        assert list(tmp_path.glob("*/graph.json"))


def test_dump_of_several_ranks(executor, tmp_path, monkeypatch):
    monkeypatch.setenv("ARK_DUMP", str(tmp_path))
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        torch._dynamo.reset()
        compile_and_check(lambda x: x + 1, torch.randn(3))
    assert sorted(f.name for f in tmp_path.iterdir()) == ["rank0", "rank1"]
    for folder in tmp_path.iterdir():
        assert len(list(folder.glob("*.fx.py"))) == 1
        assert not has_extension() or len(list(folder.glob("*/plan.json"))) == 1


def test_dump_into_a_folder_that_cannot_be_made(executor, tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ARK_DUMP", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING, logger="ark"):
        compile_and_check(lambda x: x + 1, torch.randn(3))
    assert any("ARK_DUMP" in r.getMessage() for r in caplog.records if r.name == "ark")
