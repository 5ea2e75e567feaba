"""Tables of measured numbers in the pages are those of the result files (python benchmarks/report.py --write)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import report


@pytest.mark.parametrize("page", report.PAGES, ids=lambda page: page.name)
def test_tables_are_the_result_files(page):
    text = page.read_text()
    assert report.BLOCK.search(text), f"{page.name} has no table of measured numbers"
    assert report.renewed(text) == text
