# ruff: noqa: B023  (every function is called before its loop goes on)
"""Matrix products and attention alone against cuBLAS and scaled_dot_product_attention, interleaved. TFLOP/s, medians.
Arguments: quick, fp32 (these products alone)."""

import math
import statistics
import sys

import driver
import torch


def once(function, count):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(count):
        function()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / count


def compare(functions, flops, count):
    """Rates, each function measured in turn so that clocks and heat are the same for all."""
    for f in functions:
        f()
    times = [[once(f, count) for f in functions] for _ in range(9)]
    return [flops / statistics.median(column) / 1e9 for column in zip(*times)]


def bench_matmul(shapes, layouts):
    print("matmul m n k layout | cuBLAS | ark 128x256, 128x128, items of 2, bias+gelu+residual | best plain / cuBLAS")
    for m, n, k in shapes:
        for layout in layouts:
            a = torch.randn(1, k, m, device="cuda").bfloat16().transpose(1, 2)
            a = a if layout[0] == "T" else a.contiguous()
            b = torch.randn(1, k, n, device="cuda").bfloat16()
            b = b if layout[1] == "N" else b.transpose(1, 2).contiguous().transpose(1, 2)
            out, out2 = (torch.empty(1, m, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
            bias, residual = torch.randn(n, device="cuda").bfloat16(), torch.randn(1, m, n, device="cuda").bfloat16()
            jobs = [driver.matmul(a, b, out, tile_n=t) for t in (256, 128)]
            jobs.append(driver.matmul(a, b, out, chunk=2))
            if layout == "NT":  # the kernel with this program has no other variant
                jobs.append(driver.matmul(a, b, out, bias, residual, program=2))
            flops = 2 * m * n * k
            count = max(3, min(20, int(2e12 / flops)))
            rates = compare([lambda: torch.matmul(a[0], b[0], out=out2[0])] + [j.launch for j in jobs], flops, count)
            print(
                f"{m:5} {n:5} {k:5} {layout} | {rates[0]:4.0f} | "
                + " ".join(f"{r:4.0f}" for r in rates[1:])
                + f" | {max(rates[1:4]) / rates[0]:.3f}"
            )


def bench_attention(shapes):
    print(
        "attention b h s d causal | sdpa forward, ark, items of 2 | sdpa backward, ark rows+kv+query (each alone, ms)"
    )
    for b, h, s, d, causal in shapes:
        q, k, v, dout, out, dq, dk, dv = (torch.randn(b, h, s, d, device="cuda").bfloat16() for _ in range(8))
        lse, delta = (torch.empty(b, h, s, device="cuda") for _ in range(2))
        sizes, options = (b, h, h, s, s, d), dict(scale=1 / math.sqrt(d), causal=bool(causal))
        stats = [q, k, v, dout, lse, delta, None, None]
        forward = driver.attention(0, [q, k, v, out, lse, None, None], sizes, **options)
        forward2 = driver.attention(0, [q, k, v, out, lse, None, None], sizes, chunk=2, **options)
        rows = driver.attention(1, [dout, out, delta], sizes, **options)
        grad_kv = driver.attention(2, stats + [None, dk, dv], sizes, **options)
        grad_q = driver.attention(3, stats + [dq, None, None], sizes, **options)
        inputs = [t.clone().requires_grad_() for t in (q, k, v)]
        sdpa = torch.nn.functional.scaled_dot_product_attention
        result = sdpa(*inputs, is_causal=bool(causal))
        flops = 4 * b * h * s * s * d / (2 if causal else 1)
        count = max(3, min(20, int(5e11 / flops)))

        def backward():
            torch.autograd.grad(result, inputs, dout, retain_graph=True)

        def ours():
            rows.launch()
            grad_kv.launch()
            grad_q.launch()

        with torch.no_grad():
            f = compare([lambda: sdpa(q, k, v, is_causal=bool(causal)), forward.launch, forward2.launch], flops, count)
        g = compare([backward, ours], flops * 2.5, count)
        alone = [flops / r / 1e9 for r in compare([rows.launch, grad_kv.launch, grad_q.launch], flops, count)]
        print(
            f"{b:3} {h:3} {s:5} {d:4} {causal} | {f[0]:4.0f} {f[1]:4.0f} {f[2]:4.0f} | {g[0]:4.0f} {g[1]:4.0f} ("
            + " ".join(f"{ms:.4f}" for ms in alone)
            + ")"
        )


FLOAT_TILES = [(128, 128), (128, 64), (64, 128), (64, 64)]


def graph_of(function, count):
    """`count` calls in a CUDA graph, as one function."""
    function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(count):
            function()
    return graph.replay


def bench_float(shapes):
    """cuBLAS in a CUDA graph, without tf32; ark's launches with what they cost, an empty one's time below."""
    torch.backends.cuda.matmul.allow_tf32 = False
    print("fp32 m n k layout | cuBLAS TFLOP/s, us | ark by tile: us | best: TFLOP/s, of cuBLAS | error / cuBLAS'")
    for m, n, k, layout in shapes:
        a = torch.randn(1, m, k, device="cuda") if layout[0] == "n" else torch.randn(1, k, m, device="cuda").mT
        b = torch.randn(1, k, n, device="cuda") if layout[1] == "n" else torch.randn(1, n, k, device="cuda").mT
        out, theirs = (torch.empty(1, m, n, device="cuda") for _ in range(2))
        jobs = [driver.matmul_float(a, b, out, tile=tile) for tile in FLOAT_TILES]
        flops = 2 * m * n * k
        count = max(3, min(50, int(2e11 / flops)))
        cublas = graph_of(lambda: torch.matmul(a[0], b[0], out=theirs[0]), count)

        reference, errors = a.double() @ b.double(), []
        for job in jobs:
            out.fill_(float("nan"))
            job.run()
            errors.append(((out.double() - reference).norm() / (theirs.double() - reference).norm()).item())
        rates = compare([cublas] + [lambda j=j: [j.launch() for _ in range(count)] for j in jobs], flops * count, 1)
        us = [flops / r / 1e6 for r in rates]
        print(
            f"{m:5} {n:5} {k:5} {layout} | {rates[0]:5.1f} {us[0]:7.1f} | "
            + " ".join(f"{x}x{y} {t:7.1f}" for (x, y), t in zip(FLOAT_TILES, us[1:]))
            + f" | {max(rates[1:]):5.1f} {max(rates[1:]) / rates[0]:.2f} | {max(errors):.2f}"
        )


def simple_rivals(q, k, v, causal):
    """scaled_dot_product_attention by each of its backends that takes the tensors, in a CUDA graph of 20 calls."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    fused = (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION)
    rivals = {}
    for backend in (*fused, SDPBackend.MATH):
        try:
            with sdpa_kernel(backend):
                sdpa = torch.nn.functional.scaled_dot_product_attention
                sdpa(q, k, v, is_causal=causal)
                torch.cuda.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    for _ in range(20):
                        sdpa(q, k, v, is_causal=causal)
            rivals[backend.name.split("_")[0].lower()] = graph
        except RuntimeError:
            continue
    return rivals


def bench_simple(shapes):
    """Times of kAttentionSimple, and of the best backend: the loop kernel is launched anew each time (see the empty
    launch), the rival is not."""
    print("simple dtype b h s d causal | sdpa us (best backend) | ark us, items of 2 | sdpa / ark | TFLOP/s")
    for dtype, b, h, s, d, causal in shapes:
        q, k, v, out = (torch.randn(b, h, s, d, device="cuda").to(dtype) for _ in range(4))
        lse = torch.empty(b, h, s, device="cuda")
        sizes, options = (b, h, h, s, s, d), dict(scale=1 / math.sqrt(d), causal=bool(causal))
        jobs = [driver.attention(4, [q, k, v, out, lse, None, None], sizes, chunk=n, **options) for n in (1, 2)]
        rivals = simple_rivals(q, k, v, bool(causal))
        for f in [*(graph.replay for graph in rivals.values()), *(job.run for job in jobs)]:
            f()
        rounds = [
            [once(graph.replay, 2) / 20 for graph in rivals.values()] + [once(job.launch, 10) for job in jobs]
            for _ in range(9)
        ]
        times = [1e3 * statistics.median(column) for column in zip(*rounds)]
        best = min(range(len(rivals)), key=lambda i: times[i])
        flops = 4 * b * h * s * s * d / (2 if causal else 1)
        own = min(times[-2:])
        print(
            f"{str(dtype)[6:]:8} {b:3} {h:3} {s:5} {d:4} {causal} | {times[best]:7.1f} ({list(rivals)[best]}) | "
            f"{times[-2]:7.1f} {times[-1]:7.1f} | {times[best] / own:.2f} | {flops / own / 1e6:.1f}"
        )


def bench_launch():
    """An empty list: what a launch costs before and after all tiles."""
    a, out = torch.randn(1, 128, 128, device="cuda").bfloat16(), torch.empty(1, 128, 128, device="cuda").bfloat16()
    job = driver.matmul(a, a, out, chunk=0)
    job.run()
    print(f"empty launch {1e3 * statistics.median(once(job.launch, 50) for _ in range(9)):.2f} us")


if __name__ == "__main__":
    quick = "quick" in sys.argv
    bench_launch()
    if "fp32" in sys.argv:
        cubes = [(size, size, size, "nt") for size in (1024, 2048, 4096)]
        products = [(3840, 1024, 1024), (3840, 1024, 4096), (3840, 4096, 1024)]
        layouts = [(*p, layout) for p in products for layout in ("nt", "nn", "tn")]
        bench_float([*cubes, *layouts, (384, 768, 768, "nt")])
    if "simple" in sys.argv:
        fp32 = [(torch.float32, 1, 16, 512, 64, 0), (torch.float32, 4, 12, 1024, 64, 1)]
        wide = [(torch.float32, 1, 16, 1024, 128, 0)]
        half = [(torch.bfloat16, 1, 16, 1024, d, causal) for d in (80, 96, 256) for causal in (0, 1)]
        bench_simple(fp32 + wide + half + [(torch.bfloat16, 4, 16, 2048, 96, 1), (torch.float64, 1, 16, 512, 64, 0)])
    if {"fp32", "simple"} & set(sys.argv):
        sys.exit()
    bert = [(3840, 4096, 1024), (3840, 1024, 4096), (3840, 1024, 1024)]
    cubes = [(4096, 4096, 4096), (8192, 8192, 8192)]
    bench_matmul((bert + cubes) if quick else bert + [(3840, 3072, 1024)] + cubes, ("NT",) if quick else ("NT", "NN"))
    bench_matmul([(4096, 1024, 3840), (1024, 1024, 3840)], ("TN",))
    heads = [(10, 16, 384, 64, 0), (4, 12, 384, 64, 1), (4, 16, 2048, 128, 0)]
    bench_attention(heads if quick else heads + [(8, 16, 1024, 64, 1), (2, 32, 4096, 128, 1)])
