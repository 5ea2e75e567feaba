"""How fast is each matrix product inside the loop kernel? the products of a BERT-Large step and squares, vs cuBLAS.

    python benchmarks/matmul.py --json benchmarks/results/h200/matmul.json

The rate inside the kernel is a difference: a graph of `chain` independent products against a graph of one, so
that the launch, the prologue and the drain of the loop kernel do not count (they are reported apart, as `launch_us`).
cuBLAS gets the same treatment: the same products in a CUDA graph.
"""

from __future__ import annotations

import argparse

import torch

from harness import Timer, compiled, print_row, relative_error, summary, write_json

LAYOUTS = {"nt": (False, True), "nn": (False, False), "tn": (True, False)}  # forward, input gradient, weight gradient
CASES = [  # m, k, n, layout: the products of a BERT-Large training step (10 x 384) and two squares
    (3840, 1024, 1024, "nt"),
    (3840, 1024, 4096, "nt"),
    (3840, 4096, 1024, "nt"),
    (3840, 1024, 1024, "nn"),
    (3840, 4096, 1024, "nn"),
    (3840, 1024, 4096, "nn"),
    (1024, 3840, 1024, "tn"),
    (4096, 3840, 1024, "tn"),
    (1024, 3840, 4096, "tn"),
    (3840, 1024, 30528, "nt"),  # the vocabulary's, whose rows of 30522 ark and cuBLAS pad to whole vectors
    (3840, 30528, 1024, "nn"),
    (30528, 3840, 1024, "tn"),
    (4096, 4096, 4096, "nt"),
    (8192, 8192, 8192, "nt"),
]


def operands(m: int, k: int, n: int, layout: str, count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    a_transposed, b_transposed = LAYOUTS[layout]
    make = lambda rows, cols, t: torch.randn(
        *((cols, rows) if t else (rows, cols)), device="cuda", dtype=torch.bfloat16
    )
    pairs = [(make(m, k, a_transposed), make(k, n, b_transposed)) for _ in range(count)]
    return [(a.t() if a_transposed else a, b.t() if b_transposed else b) for a, b in pairs]


def graphed(function, pairs) -> object:
    """The products of `pairs` in one CUDA graph."""
    function(pairs)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        graph.outputs = function(pairs)
    return graph


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--cases", help="m,k,n,layout;... with a layout of nt, nn and tn")
    args = parser.parse_args()
    cases = CASES
    if args.cases:
        fields = [case.split(",") for case in args.cases.split(";")]
        cases = [(int(m), int(k), int(n), layout) for m, k, n, layout in fields]
    timer, rows = Timer("cuda", flush_l2=False), []
    for m, k, n, layout in cases:
        chain = max(2, min(9, int(4e12 / (2 * m * n * k))))
        torch._dynamo.reset()
        multiply = lambda pairs: [a @ b for a, b in pairs]
        pairs = operands(m, k, n, layout, chain)
        ark = compiled(lambda *flat: [a @ b for a, b in zip(flat[::2], flat[1::2])], "ark")
        flat = [t for pair in pairs for t in pair]
        calls = {
            ("ark", 1): lambda: ark(*flat[:2]),  # noqa: B023
            ("ark", chain): lambda: ark(*flat),  # noqa: B023
            ("cublas", 1): graphed(multiply, pairs[:1]).replay,
            ("cublas", chain): graphed(multiply, pairs).replay,
        }
        exact = pairs[0][0].double() @ pairs[0][1].double()
        error, eager_error = relative_error(ark(*flat)[0], exact), relative_error(pairs[0][0] @ pairs[0][1], exact)
        if not error <= 1.5 * eager_error:
            raise AssertionError(f"{m}x{k}x{n} {layout}: error {error:.3e}, cuBLAS {eager_error:.3e}")
        samples = {key: [] for key in calls}
        for _ in range(args.rounds + 3):
            for key, call in calls.items():
                samples[key].append(timer(call))
        samples = {key: values[3:] for key, values in samples.items()}
        per = {
            who: [(b - a) / (chain - 1) * 1e3 for a, b in zip(samples[who, 1], samples[who, chain])]
            for who in ("ark", "cublas")
        }
        row = {
            "case": f"{m}x{k}x{n} {layout} bf16, inside one kernel",
            "unit": "us",
            "better": "lower",
            "ark": summary(per["ark"]),
            "rivals": {"cublas": summary(per["cublas"])},
            "floor": 2 * m * n * k / 790e12 * 1e6,
            "must": summary(per["cublas"])["median"] / 0.85,
            "errors": {"ark": error, "cublas": eager_error},
            "launch_us": summary(samples["ark", 1])["median"] * 1e3,
            "cublas_launch_us": summary(samples["cublas", 1])["median"] * 1e3,
            "fraction_of_cublas": summary(per["cublas"])["median"] / summary(per["ark"])["median"],
        }
        print_row(row)
        print(f"    {row['fraction_of_cublas']:.3f} of cuBLAS", flush=True)
        rows.append(row)
    write_json(args.json, rows)


if __name__ == "__main__":
    main()
