"""The Python source of one callable while it is written: its lines, and the values that they name."""

from __future__ import annotations

import math

import torch


class Source:
    """The body of `call(args)`."""

    def __init__(self):
        self.scope: dict = {"torch": torch, "math": math}
        self.lines: list[str] = []

    def add(self, line: str) -> None:
        self.lines.append(line)

    def constant(self, value, name: str = "") -> str:
        key = f"c{len(self.scope)}_{name}" if name else f"c{len(self.scope)}"
        for known, item in self.scope.items():
            if item is value:
                return known
        self.scope[key] = value
        return key

    def close(self, name: str):
        source = "def call(args):\n" + "".join(f"    {line}\n" for line in self.lines)
        exec(compile(source, f"<ark {name}>", "exec"), self.scope)
        call = self.scope["call"]
        call.__name__ = name
        call.source = source
        return call
