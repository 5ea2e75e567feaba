"""The modes that callers of inductor pass: taken, said once what ark does for them; others are an error."""

from __future__ import annotations

import logging

import pytest
import torch

from ark_torch.backend import ark
from ark_torch.modes import MODES
from ark_torch.records import recording


def body(x):
    return torch.softmax(x * 2 + 1, -1)


def lines(caplog) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "ark" and r.levelno == logging.INFO]


@pytest.mark.parametrize("mode", [None, *MODES])
def test_a_mode_compiles_as_the_default_does(executor, mode, caplog):
    x = torch.randn(5, 7)
    with caplog.at_level(logging.INFO, logger="ark"), recording() as records:
        first = torch.compile(body, backend=ark, mode=mode)
        second = torch.compile(lambda x: body(x).sum(0), backend=ark, mode=mode)
        held = first(x)
        torch.testing.assert_close(second(x), body(x).sum(0))
        first(-x)
        torch.testing.assert_close(held, body(x))  # reduce-overhead of inductor would overwrite it
    assert len(records) == 2 and not any(r.fallbacks for r in records)
    said = [line for line in lines(caplog) if "mode" in line]
    assert said == ([f"mode {mode!r} compiles as the default does: {MODES[mode]}"] if MODES.get(mode) else [])


def test_the_modes_are_those_of_torch():
    """Those that torch.compile's documentation has; a mode that torch adds is to be thought about."""
    assert all(f'"{mode}"' in torch.compile.__doc__ for mode in MODES)


def test_an_unknown_mode_names_those_that_are_known():
    with pytest.raises(Exception, match="no mode 'fastest' .known: default, reduce-overhead, max-autotune, max"):
        torch.compile(body, backend=ark, mode="fastest")(torch.ones(3))


def test_help_says_what_a_mode_does():
    text = " ".join(ark.__doc__.split())
    assert all(f"{mode} {meaning}".strip() in text for mode, meaning in MODES.items())
