"""What differs between two folders of saved plans (`test_saved_plans --save FOLDER`), field by field:

python -m tests.support.compare_plans OLD NEW [--new-fields a,b]

Fields named by --new-fields are left out of both sides. Ends with 1 where something differs, with 2 on bad input.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

MISSING = object()  # a field that is equal to its default is not written


def without(value, fields: frozenset[str], met: set[str]):
    """The value without these fields, at any depth; `met` gets those that it had."""
    if isinstance(value, list):
        return [without(item, fields, met) for item in value]
    if not isinstance(value, dict):
        return value
    met |= fields & value.keys()
    return {key: without(item, fields, met) for key, item in value.items() if key not in fields}


def differences(old, new, path: str = "") -> Iterator[str]:
    """A line for every field that only one of the two has or whose values or types differ: `path: old -> new`."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            yield from differences(old.get(key, MISSING), new.get(key, MISSING), f"{path}.{key}" if path else key)
    elif isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            yield f"{path}: {len(old)} -> {len(new)} elements"
        for i, (a, b) in enumerate(zip(old, new, strict=False)):
            yield from differences(a, b, f"{path}[{i}]")
    elif type(old) is not type(new) or old != new:
        yield f"{path}: {shown(old)} -> {shown(new)}"


def shown(value) -> str:
    text = "(none)" if value is MISSING else json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."


def plans_of(folder: Path) -> dict[str, dict]:
    """Every plan of the folder by its name. Raises ValueError where there is none or one is no JSON."""
    plans = {}
    for file in sorted(folder.glob("*.plan")):
        try:
            plans[file.name] = json.loads(file.read_text())
        except ValueError as error:
            raise ValueError(f"{file}: expected JSON, got: {error}") from error
    if not plans:
        raise ValueError(f"{folder}: expected files *.plan, got none")
    return plans


def compare(old: Path, new: Path, ignored: frozenset[str]) -> list[str]:
    """The lines of all plans. Raises ValueError where an ignored field is one of no plan."""
    plans, met, lines = (plans_of(old), plans_of(new)), set(), []
    for name in sorted({*plans[0], *plans[1]}):
        a, b = (without(p.get(name), ignored, met) for p in plans)
        if a is None or b is None:
            lines.append(f"{name}: only in {new if a is None else old}")
        else:
            lines += [f"{name}: {line}" for line in differences(a, b)]
    if ignored - met:
        raise ValueError(f"--new-fields: expected fields of the plans, got {', '.join(sorted(ignored - met))}")
    return lines


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--new-fields", default="", metavar="a,b", help="fields to leave out, old ones too")
    given = parser.parse_args(arguments)
    try:
        lines = compare(given.old, given.new, frozenset(filter(None, given.new_fields.split(","))))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    print(*lines, f"{len(lines)} differences", sep="\n")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
