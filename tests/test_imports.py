"""No circle of imports in ark_torch, imports inside functions counted."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "ark_torch"


def sources() -> dict[str, str]:
    """The text of every module of the package by its name."""
    files = {f.relative_to(ROOT).with_suffix(""): f.read_text() for f in (ROOT / PACKAGE).rglob("*.py")}
    return {".".join(p.parts).removesuffix(".__init__"): text for p, text in files.items()}


def called_name(node: ast.AST) -> str | None:
    """The module that `import_module("name")` names."""
    if not isinstance(node, ast.Call) or not ast.unparse(node.func).endswith("import_module") or not node.args:
        return None
    return node.args[0].value if isinstance(node.args[0], ast.Constant) else None


def imports(text: str, modules: set[str]) -> set[str]:
    """Those of the modules that the text imports, at its top or in a function. `from package import name` is an import
    of `package.name` where that is a module, else of `package`."""
    found: set[str | None] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"a relative import in line {node.lineno}: expected an absolute one"
            inner = {alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            found |= {full if full in modules else node.module for full in inner.values()}
        else:
            found.add(called_name(node))
    return {name for name in found if name in modules}


def circle(edges: dict[str, set[str]]) -> list[str]:
    """A path from a module to itself, both ends named; none: empty."""
    done: set[str] = set()

    def walk(name: str, path: tuple[str, ...]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        found = next(filter(None, (walk(other, (*path, name)) for other in sorted(edges.get(name, ())))), [])
        done.add(name)
        return found

    return next(filter(None, (walk(name, ()) for name in sorted(edges))), [])


def edges_of(texts: dict[str, str]) -> dict[str, set[str]]:
    modules = set(texts) | {f"{PACKAGE}._C"}  # the extension has no source here and imports nothing back
    return {name: imports(text, modules) for name, text in texts.items()}


def test_no_circle_of_imports():
    edges = edges_of(sources())
    assert len(edges) > 10 and sum(map(len, edges.values())) > 50
    assert circle(edges) == [], "a circle of imports"


def test_circles_are_found():
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert circle({"a": {"a"}}) == ["a", "a"]


def test_imports_in_functions_count():
    texts = {
        "ark_torch": 'def late():\n    importlib.import_module("ark_torch.top")\n',
        "ark_torch.top": "from ark_torch import low\nfrom ark_torch._C import x\n",
        "ark_torch.low": "import os\ndef f():\n    from ark_torch.top import g\n",
        "ark_torch.user": "import ark_torch\nfrom ark_torch import late\n",
    }
    edges = edges_of(texts)
    assert edges["ark_torch"] == {"ark_torch.top"} and edges["ark_torch.user"] == {"ark_torch"}
    assert edges["ark_torch.top"] == {"ark_torch.low", "ark_torch._C"}
    assert circle(edges) == ["ark_torch.top", "ark_torch.low", "ark_torch.top"]
    texts["ark_torch.low"] = "import os\n"
    assert circle(edges_of(texts)) == []
