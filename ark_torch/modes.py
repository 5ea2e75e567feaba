"""The modes of `torch.compile(mode=...)`: they ask for what inductor does; here is what ark does for each."""

from __future__ import annotations

import textwrap

from ark_torch.records import REGISTRY, log

_ONE_LAUNCH = (
    "a native graph is one launch in every mode, outputs stay valid after the next call; no CUDA graph is made"
)
_PLANNED = "in every mode the planner chooses tiles and kernels ahead of time, no candidates are timed"

MODES = {
    "default": "",
    "reduce-overhead": _ONE_LAUNCH,
    "max-autotune": f"{_PLANNED}; {_ONE_LAUNCH}",
    "max-autotune-no-cudagraphs": _PLANNED,
}


def check_mode(mode: str | None) -> None:
    """Raises ValueError for a mode that ark does not know. What ark does for the others is logged once (info)."""
    if mode is None:
        return
    if mode not in MODES:
        raise ValueError(f'backend "ark" has no mode {mode!r} (known: {", ".join(MODES)})')
    if MODES[mode] and REGISTRY.first(f"mode {mode}"):
        log.info("mode %r compiles as the default does: %s", mode, MODES[mode])


def describe_modes() -> str:
    """The list in help(ark_torch.backend.ark)."""
    lines = []
    for mode, meaning in MODES.items():
        text = meaning or "torch hands it over as no mode"
        lines += textwrap.wrap(text, 110, initial_indent=f"{mode:<28}", subsequent_indent=" " * 28)
    return "\n".join(lines)


__all__ = ["MODES", "check_mode", "describe_modes"]
