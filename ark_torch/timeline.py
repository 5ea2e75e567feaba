"""The picture of a run: an SVG with a row per worker, a scale in round numbers, the layers of the model above."""

from __future__ import annotations

import colorsys
import html
import zlib
from collections.abc import Iterator

from ark_torch.layers import lanes, spans_of_layers
from ark_torch.runs import Run, load_end, wait_end

PALETTE = {
    "pointwise": "#4c9f70",
    "row": "#8dbf42",
    "column": "#c2b84a",
    "matmul_rows": "#2f6fb5",
    "matmul_tile": "#1f4e8c",
    "matmul_float": "#4a82c0",
    "matmul_simple": "#74a3d4",
    "attention_decode": "#c0504d",
    "attention_forward": "#a33a3a",
    "attention_simple": "#d98b88",
    "attention_backward_rows": "#b07aa1",
    "attention_backward": "#7b4a86",
    "attention_backward_query": "#9a6bb0",
    "mask_range": "#888888",
    "scatter_sum": "#6b5b95",
    "row_select": "#8c7853",
    "row_draw": "#a58f63",
}  # of a kind that is not here: color_of
WAIT = "#e4e4e4"
PALE = 0.55
NOTES = (("wait for other tiles", WAIT), ("pale: loads arrive; full: compute and store (no stamp between)", "#9db5d5"))
LEFT, RIGHT, LINE = 40, 20, 14  # of the picture's margins, and of a line of text
CHARACTER = 6.2  # a letter's width, about


def draw(run: Run, width: int) -> str:
    workers = 1 + max((r["worker"] for r in run.records), default=0)
    row = min(max(320 // workers, 6), 24)
    scale = (width - LEFT - RIGHT) / max(run.end_ns - run.begin_ns, 1)
    title = f"{run.name}: {run.span_ms:.4f} ms, {workers} workers, {len(run.records)} items; {shares(run, workers)}"
    parts = [_text(LEFT, LINE, title)]
    legend, top = _legend(run, width, 2 * LINE)
    layers, top = _layers(run, scale, top + 4)
    bottom = top + workers * row
    parts += [*legend, *layers, *_ticks(run, scale, top, bottom), *_numbers(workers, row, top)]
    for record in run.records:
        parts += _item(record, run, scale, top + record["worker"] * row, row - 1)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{bottom + 2 * LINE}" '
        'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>'
        + "".join(parts)
        + "</svg>\n"
    )


def color_of(kind: str) -> str:
    """A kind that has no colour yet gets one by its name."""
    hue = zlib.crc32(kind.encode()) % 360 / 360
    red, green, blue = (round(255 * part) for part in colorsys.hls_to_rgb(hue, 0.5, 0.4))
    return PALETTE.get(kind, f"#{red:02x}{green:02x}{blue:02x}")


def shares(run: Run, workers: int) -> str:
    """How the workers' time splits, in per cent; the four add up to 100."""
    total = max(run.end_ns - run.begin_ns, 1) * workers / 100
    wait = sum(wait_end(r) - r["begin"] for r in run.records) / total
    load = sum(load_end(r) - wait_end(r) for r in run.records) / total
    rest = sum(r["end"] - load_end(r) for r in run.records) / total
    wait, load, rest = round(wait, 1), round(load, 1), round(rest, 1)
    idle = max(100 - wait - load - rest, 0)
    return f"waiting {wait} %, loading (pale) {load} %, computing and storing {rest} %, between items {idle:.1f} %"


def round_step(span_ns: float, most: int = 10) -> tuple[int, str, float]:
    """Of a scale of at most so many steps: the step (1, 2 or 5 times a power of ten, ns), its unit, the unit in ns."""
    step = 1
    while span_ns / step > most:
        step = step * 5 // 2 if str(step)[0] == "2" else step * 2
    unit, length = next((u, n) for u, n in (("ms", 1e6), ("us", 1e3), ("ns", 1)) if span_ns >= n or n == 1)
    return step, unit, length


def _ticks(run: Run, scale: float, top: int, bottom: int) -> Iterator[str]:
    step, unit, length = round_step(run.end_ns - run.begin_ns)
    for at in range(0, run.end_ns - run.begin_ns + 1, step):
        x = LEFT + at * scale
        yield f'<path d="M{x:.1f} {top}V{bottom + 4}" stroke="#cccccc" stroke-width="0.5"/>'
        yield _text(x, bottom + LINE + 2, f"{at / length:g} {unit}", "middle")


def _numbers(workers: int, row: int, top: int) -> Iterator[str]:
    """As many of the workers' numbers as have room."""
    every = next(n for n in (1, 2, 4, 5, 10) if n * row >= 11)
    for worker in range(0, workers, every):
        yield _text(LEFT - 4, top + worker * row + row // 2 + 4, str(worker), "end")


def _legend(run: Run, width: int, y: int) -> tuple[list[str], int]:
    """The kinds of the run, in as many lines as they take; where the next thing begins."""
    used = {r["kind"]: None for r in run.records}
    kinds = sorted(used, key=lambda kind: list(PALETTE).index(kind) if kind in PALETTE else len(PALETTE))
    parts, x = [], LEFT
    for name, color in [(kind, color_of(kind)) for kind in kinds] + list(NOTES):
        long = 14 + int(CHARACTER * len(name)) + 16
        if x + long > width - RIGHT and x > LEFT:
            x, y = LEFT, y + LINE
        parts.append(f'<rect x="{x}" y="{y - 9}" width="10" height="10" fill="{color}"/>' + _text(x + 14, y, name))
        x += long
    return parts, y + 4


def _layers(run: Run, scale: float, top: int) -> tuple[list[str], int]:
    """A bar from the first work of each layer to its last, in lanes where layers overlap."""
    placed, parts = lanes(spans_of_layers(run.records)), []
    for lane, name, begin, end in placed:
        x, long, y = LEFT + (begin - run.begin_ns) * scale, (end - begin) * scale, top + lane * LINE
        place = f'x="{x:.2f}" y="{y}" width="{max(long, 1):.2f}" height="{LINE - 2}"'
        tip = f"{name}: {(begin - run.begin_ns) / 1e3:.2f} to {(end - run.begin_ns) / 1e3:.2f} us"
        label = _text(x + 3, y + 10, name) if CHARACTER * len(name) + 4 < long else ""
        parts.append(f'<g class="layer"><title>{html.escape(tip)}</title><rect {place} fill="#e8eef7" stroke="white"/>')
        parts.append(label + "</g>")
    return parts, top + LINE * (1 + max((lane for lane, *_ in placed), default=-1)) + 4


def _item(record: dict, run: Run, scale: float, y: int, height: int) -> list[str]:
    """An item's bars under one tooltip; nothing where it is too thin to be seen."""
    stamps = (record["begin"], wait_end(record), load_end(record), record["end"])
    color = color_of(record["kind"])
    bars = []
    for begin, end, fill, opacity in zip(stamps, stamps[1:], (WAIT, color, color), (1, PALE, 1)):
        if (end - begin) * scale >= 0.05:
            shade = f' opacity="{opacity}"' if opacity != 1 else ""
            place = f'x="{LEFT + (begin - run.begin_ns) * scale:.2f}" y="{y}" width="{(end - begin) * scale:.2f}"'
            bars.append(f'<rect {place} height="{height}" fill="{fill}"{shade}/>')
    return ["<g><title>", html.escape(_tip(record, stamps)), "</title>", *bars, "</g>"] if bars else []


def _tip(record: dict, stamps: tuple) -> str:
    wait, load, rest = ((b - a) / 1e3 for a, b in zip(stamps, stamps[1:]))
    where = f"{record['module']}: {record['name']}" if record["module"] else record["name"]
    tiles = f"tiles {record['first']} to {record['first'] + record['count'] - 1}"
    times = f"wait {wait:.2f}, load {load:.2f}, compute and store {rest:.2f} us"
    return f"worker {record['worker']}, {record['kind']}, {where[:100]}, {tiles}: {times}"


def _text(x: float, y: float, text: str, anchor: str = "") -> str:
    where = f' text-anchor="{anchor}"' if anchor else ""
    return f'<text x="{x:.1f}" y="{y}"{where}>{html.escape(text)}</text>'
