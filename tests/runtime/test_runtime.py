"""The runtime below the front end, on the host target: calls, checks, views, symbols, states, caches, traces, dumps."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest
import torch

from tests.support.damaged_plans import some_inputs, without_one_arrival, without_one_item
from tests.support.graph_builder import GraphBuilder, accumulate_in_place, add_relu, mlp, symbolic_scale

_C = pytest.importorskip("ark_torch._C")
OPTIONS = {"workers": 6, "threads": 2}


def host(graph: str, **options):
    return _C.CompiledGraph(graph, "host", 0, OPTIONS | options)


def test_pointwise_follows_eager():
    graph = host(add_relu([37, 19]))
    a, b = torch.randn(37, 19), torch.randn(37, 19)
    (out,) = graph([a, b])
    assert torch.equal(out, torch.relu(a + b))
    assert out.stride() == (19, 1)


def test_chain_of_matmuls_follows_fp64():
    graph = host(mlp(33, 96))
    x, w1, w2 = torch.randn(33, 64), torch.randn(64, 96), torch.randn(96, 64)
    (out,) = graph([x, w1, w2])
    exact = torch.relu(x.double() @ w1.double()) @ w2.double() + x.double()
    torch.testing.assert_close(out.double(), exact, rtol=1e-4, atol=1e-4)


def test_outputs_are_fresh_and_keep_their_contents():
    graph = host(add_relu([64]))
    inputs = [(torch.randn(64), torch.randn(64)) for _ in range(10)]
    outputs = [graph([a, b])[0] for a, b in inputs]
    assert len({out.data_ptr() for out in outputs}) == 10
    for (a, b), out in zip(inputs, outputs):
        assert torch.equal(out, torch.relu(a + b))


def test_output_may_be_a_view_or_an_input():
    g = GraphBuilder("views")
    a = g.input("a", [4, 6])
    double = g.pointwise("add", [a, a], "double", [4, 6])
    transposed = g.node("view", [double], g.value("transposed", [6, 4], strides=[1, 6], base=double))
    column = g.node("view", [double], g.value("column", [4], strides=[6], base=double, offset=2))
    graph = host(g.returns(transposed, a, column))
    x = torch.randn(4, 6)
    got_transposed, got_input, got_column = graph([x])
    assert torch.equal(got_transposed, (x + x).t()) and got_transposed.stride() == (1, 6)
    assert got_input is x
    assert torch.equal(got_column, (x + x)[:, 2]) and got_column.storage_offset() == 2


def test_mutation_of_an_input():
    graph = host(accumulate_in_place(100))
    state, x = torch.randn(100), torch.randn(100)
    expected = state + x
    address = state.data_ptr()
    (out,) = graph([state, x])
    assert torch.equal(state, expected) and state.data_ptr() == address
    assert torch.equal(out, expected * x)


def test_an_input_moves_on_while_it_is_stored_from_other_places_of_itself():
    g = GraphBuilder("moves")
    a, b = g.input("a", [6, 6]), g.input("b", [6, 6])
    turned = g.node("view", [b], g.value("turned", [6, 6], strides=[1, 6], base=b))
    g.node("copy_to", [a, b], g.value("moved", [6, 6], base=a))
    g.node("copy_to", [b, g.pointwise("relu", [turned], "next", [6, 6])], g.value("stored", [6, 6], base=b))
    graph, (old_a, old_b) = host(g.returns()), torch.randn(2, 6, 6)
    x, y = old_a.clone(), old_b.clone()
    graph([x, y])
    assert torch.equal(x, old_b) and torch.equal(y, torch.relu(old_b.t()))


def test_inputs_at_odd_addresses():
    graph = host(accumulate_in_place(100))
    buffer, others = torch.randn(103), torch.randn(101)
    state, x = buffer[3:], others[1:]
    assert state.data_ptr() % 16 and x.data_ptr() % 16
    expected, before = state + x, buffer[:3].clone()
    graph([state, x])
    assert torch.equal(buffer[3:], expected) and torch.equal(buffer[:3], before)


def test_symbols_make_one_executable_per_value():
    graph = host(symbolic_scale())
    assert graph.symbols == ["s0"] and graph.num_inputs == 2
    for rows in (5, 1, 17, 5):
        a = torch.randn(rows, 8)
        (out,) = graph([a, rows])
        torch.testing.assert_close(out, a * a + a)
    assert graph.stats()["executables"] == 3


def test_symbols_from_sizes_and_maps():
    graph = host(symbolic_scale(), input_map=[2], symbol_map=[[2, 0]])
    a = torch.randn(7, 8)
    (out,) = graph(["ignored", None, a])
    torch.testing.assert_close(out, a * a + a)


def test_least_recently_used_executables_are_dropped():
    graph = host(symbolic_scale(), max_executables=2)
    for rows in (1, 2, 3, 1, 3):
        graph([torch.randn(rows, 8), rows])
    stats = graph.stats()
    assert stats["executables"] == 2 and stats["evictions"] == 2


@pytest.mark.parametrize(
    "inputs, message",
    [
        ([torch.zeros(4, 6)], "at least 2 inputs, got 1"),
        ([torch.zeros(4, 6), 3], "input 1: expected a tensor, got int"),
        ([torch.zeros(4, 6), torch.zeros(4, 5)], r"input 1 \(b\): expected f32 sizes \[4, 6\].*sizes \[4, 5\]"),
        ([torch.zeros(4, 6), torch.zeros(6, 4).t()], r"strides \[6, 1\], got float sizes \[4, 6\] strides \[1, 4\]"),
        ([torch.zeros(4, 6, dtype=torch.float64), torch.zeros(4, 6)], "got double"),
        ([torch.zeros(4, 6), torch.zeros(4, 6, device="meta")], "expected a tensor on cpu, got one on meta"),
    ],
)
def test_bad_inputs_are_refused(inputs, message):
    with pytest.raises(ValueError, match=message):
        host(add_relu([4, 6]))(inputs)


def test_strides_of_single_rows_do_not_matter():
    a = torch.randn(1, 6).as_strided((1, 6), (100, 1))
    (out,) = host(add_relu([1, 6]))([a, a])
    assert torch.equal(out, torch.relu(a + a))


def test_bad_graphs_and_options_are_refused():
    with pytest.raises(ValueError, match="unknown option colour"):
        host(add_relu([4]), colour=3)
    with pytest.raises(ValueError, match="workers: expected 1 to 1024, got 0"):
        host(add_relu([4]), workers=0)
    with pytest.raises(ValueError, match="schedule: expected greedy or sequential, got other"):
        host(add_relu([4]), schedule="other")
    with pytest.raises(ValueError, match="target: expected cuda or host, got tpu"):
        _C.CompiledGraph(add_relu([4]), "tpu", 0, {})
    with pytest.raises(ValueError):
        host("{")
    with pytest.raises(ValueError, match="expected 1 symbol values, got 0"):
        host(symbolic_scale()).prepare([])


def test_threads_run_side_by_side():
    graph = host(mlp(16, 64))
    inputs = [(torch.randn(16, 64), torch.randn(64, 64), torch.randn(64, 64)) for _ in range(8)]
    alone = [graph(list(i))[0] for i in inputs]
    results: list = [None] * len(inputs)

    def work(index: int) -> None:
        for _ in range(10):
            results[index] = graph(list(inputs[index]))[0]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for expected, result in zip(alone, results):
        assert torch.equal(expected, result)


def test_threads_compile_one_executable():
    graph = host(symbolic_scale())
    threads = [threading.Thread(target=lambda: graph([torch.randn(9, 8), 9])) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert graph.stats()["executables"] == 1


def test_stats_describe_the_plan():
    graph = host(mlp(16, 64), name="renamed")
    graph.prepare()
    stats = graph.stats()
    assert stats["name"] == "renamed" and stats["target"] == "host" and stats["num_workers"] == 6
    assert stats["num_ops"] == sum(stats["tasks"].values()) > 0
    assert stats["flops"] >= 2 * 2 * 16 * 64 * 64
    assert stats["bytes"] >= 4 * (16 * 64 + 2 * 64 * 64)
    assert set(stats["seconds"]) == {"parse", "bind", "plan", "source", "compile", "load"}
    assert json.loads(graph.plan_json())["name"] == "renamed"
    assert "renamed" in graph.plan_text()


def test_plan_without_executable():
    plan = json.loads(_C.plan_graph(mlp(16, 64), [], {"workers": 4}))
    assert plan["num_workers"] == 4


def test_dump_writes_every_stage(tmp_path, monkeypatch):
    monkeypatch.setenv("ARK_DUMP", str(tmp_path))
    host(symbolic_scale("dumped")).prepare([3])
    files = {f.name for f in (tmp_path / "dumped-s0=3").iterdir()}
    assert files == {"graph.json", "graph.txt", "bound.txt", "fused.txt", "plan.txt", "plan.json"}
    assert all((tmp_path / "dumped-s0=3" / f).stat().st_size for f in files)


def dumped(folder) -> set[str]:
    return {f.name for f in folder.iterdir() if f.stat().st_size}


STAGES = {"graph.json", "graph.txt", "bound.txt", "fused.txt", "plan.txt", "plan.json"}


def test_dump_of_what_fails(tmp_path, monkeypatch):
    """What is needed to look into a failure is there: the graph, the stages before it, the error."""
    monkeypatch.setenv("ARK_DUMP", str(tmp_path))
    graph = host(add_relu([4], name="bad"), plan='{"no": "plan"}')
    with pytest.raises(ValueError) as error:
        graph.prepare()
    assert dumped(tmp_path / "bad") == STAGES - {"fused.txt", "plan.txt", "plan.json"} | {"error.txt"}
    assert str(error.value) in (tmp_path / "bad/error.txt").read_text()
    assert json.loads((tmp_path / "bad/graph.json").read_text())["name"] == "bad"
    host(add_relu([5], name="bad")).prepare()  # another of the name does not overwrite it
    assert dumped(tmp_path / "bad.2") == STAGES and "error.txt" in dumped(tmp_path / "bad")


def test_dump_of_a_graph_that_is_refused(tmp_path):
    graph = json.loads(add_relu([4], name="bad"))
    graph["nodes"][0]["inputs"] = [99]
    with pytest.raises(RuntimeError):
        host(json.dumps(graph), dump=str(tmp_path))
    assert dumped(tmp_path / "bad") == {"graph.json", "error.txt"}


def test_trace_and_profile(tmp_path):
    import ark_torch

    graph = host(mlp(16, 64))
    inputs = [torch.randn(16, 64), torch.randn(64, 64), torch.randn(64, 64)]
    (expected,) = graph(inputs)
    with ark_torch.profile() as prof:
        (out,) = graph(inputs)
        graph(inputs)
    assert torch.equal(out, expected)
    assert len(prof.runs) == 2
    run = prof.runs[0]
    assert {r["op"] for r in run.records} == set(range(graph.stats()["num_ops"]))
    assert sum(r["count"] for r in run.records) == graph.stats()["num_tiles"]
    assert all(r["begin"] <= r["end"] and 0 <= r["worker"] < 6 for r in run.records)
    assert "matmul" in prof.table()
    prof.export_chrome_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert sum(e["ph"] == "X" and e["cat"] not in ("wait", "layer") for e in events) == sum(
        len(r.records) for r in prof.runs
    )
    prof.save_timeline(tmp_path / "timeline.svg")
    assert (tmp_path / "timeline.svg").read_text().startswith("<svg")
    graph(inputs)
    assert len(prof.runs) == 2


def test_a_producer_that_never_signals_is_an_error():
    """Every arrival that is waited for and every item that makes one, removed in turn: the wait's deadline says where,
    and other runs go on."""
    text = mlp(70, 200)
    healthy = host(text)
    inputs = some_inputs(text, "cpu")
    (expected,) = healthy(inputs)
    plan = healthy.plan_json([])
    arrivals, items = list(without_one_arrival(plan)), list(without_one_item(plan, 100))
    assert arrivals and items
    for _, plan in arrivals + items:
        graph = host(text, plan=plan, deadline_ms=50)
        with pytest.raises(_C.DeviceError, match=r"worker \d+ waited .* op .*"):
            graph(inputs)
        assert torch.equal(healthy(inputs)[0], expected)


def test_a_wide_product_of_few_rows_is_proved_in_time():
    """Its columns are runs of one element a row: hulls of whole columns would all meet each other (minutes)."""
    g = GraphBuilder("head")
    x = g.input("x", [3, 64], torch.float32)
    w = g.input("w", [64, 128256], torch.float32, strides=[1, 64], immutable=True)
    begin = time.process_time()
    plan = json.loads(_C.plan_graph(g.returns(g.matmul(x, w, "y", [3, 128256], torch.float32)), [], {"workers": 132}))
    assert [op["kind"] for op in plan["ops"]] == ["matmul_rows"]
    assert time.process_time() - begin < 10  # 0.3 measured


def test_a_feed_forward_product_waits_for_its_own_rows():
    """In the front end's graph of BERT: a row block of the second product of a layer waits for that row block of the
    first, all of its columns, and for no other."""
    text = (Path(__file__).parents[1] / "data/graphs/bert_fw_small.json").read_text()
    ops = json.loads(_C.plan_graph(text, [], {"workers": 132}))["ops"]
    products = {op["module"]: op for op in ops if op.get("kind") == "matmul_tile"}
    for layer in range(2):
        first = products[f"bert.encoder.layer.{layer}.intermediate.dense"]
        second = products[f"bert.encoder.layer.{layer}.output.dense"]
        (arrive,) = first["arrivals"]
        rows, columns = first["grid"][1:]
        assert rows == second["grid"][1] > 1 and arrive["coef"] == [0, 1, 0] and arrive["limit"] == rows
        counters = range(arrive["counter"], arrive["counter"] + rows)
        (wait,) = [wait for wait in second["waits"] if wait["counter"] in counters]
        assert wait["counter"] == arrive["counter"] and wait["coef"] == [0, 1, 0] and wait.get("base", 0) == 0
        assert wait["extent"] == wait["div"] == 1 and wait["target"] == wait["last_target"] == columns


def test_every_kind_of_task_has_a_colour():
    from ark_torch.timeline import PALETTE, color_of

    kinds = _C.task_kinds()
    assert set(PALETTE) <= set(kinds)
    assert len({color_of(kind) for kind in [*kinds, "a_kind_of_tomorrow"]}) == len(kinds) + 1
