"""Files have at most 500 lines, nine of ten functions at most 21, lines of C++ at most 120 characters."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("ark_torch", "benchmarks", "csrc", "examples", "tests")
MOST_LINES, MOST_OF_NINE_IN_TEN, MOST_CHARACTERS = 500, 21, 120
CPP = (".h", ".cpp", ".cuh", ".cu")
# What no brace or line of code is in: comments, raw strings, strings, characters, lines of the preprocessor.
NO_CODE = re.compile(
    r"//[^\n]*|/\*.*?\*/|R\"(\w*)\(.*?\)\1\"|\"(?:\\.|[^\"\\\n])*\"|(?<!\w)'(?:\\.|[^'\\\n])+'"
    r"|^[ \t]*#(?:\\\n|[^\n])*",
    re.S | re.M,
)
SCOPE = re.compile(r"\b(namespace|class|struct|union|extern)\b")


def files(suffixes: tuple[str, ...]) -> list[Path]:
    return [f for folder in FOLDERS for f in (ROOT / folder).rglob("*") if f.suffix in suffixes and f.is_file()]


def p90(lengths: list[int]) -> int:
    """The least length that nine of ten do not exceed."""
    return sorted(lengths)[-(-9 * len(lengths) // 10) - 1]


def python_lengths(text: str) -> list[int]:
    """Lines of every function's body: from the first statement behind the docstring to the last."""
    lengths = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
            lengths.append(body[-1].end_lineno - body[0].lineno + 1 if body else 0)
    return lengths


def only_code(text: str) -> str:
    """The text with nothing but its line ends where no code is."""
    return NO_CODE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)


def outside(text: str, opening: str, closing: str) -> str:
    """What stands in no pair of these brackets; the pairs stay, empty."""
    kept, depth = [], 0
    for char in text:
        depth -= char == closing and depth > 0
        if depth == 0:
            kept.append(char)
        depth += char == opening
    return "".join(kept)


def opens(header: str) -> str:
    """What a brace behind this text opens, where no function is around it: a scope, a function, or a value."""
    header = re.sub(r"operator\s*(\(\s*\)|[^\s\w(]+)", "operator", header)
    header = re.sub(r"\btemplate\s*<>", "", outside(outside(header, "(", ")"), "<", ">"))
    if "()" not in header:
        return "scope" if SCOPE.search(header) and "=" not in header else "value"
    in_list = re.search(r"\)[\w\s]*:[^:]", header) and re.search(r"[\w>]\s*$", header)  # : member{...}
    return "value" if "=" in header or in_list else "function"


def cpp_lengths(text: str) -> list[int]:
    """Lines between the braces of every function that lies in no other."""
    code, lengths = only_code(text), []
    begin = line = depth = first = 0  # begin: of the text since the last end of a declaration
    kind = ""
    for at, char in enumerate(code):
        line += char == "\n"
        if depth > 0:
            depth += (char == "{") - (char == "}")
            if depth == 0 and kind == "function":
                lengths.append(max(line - first - 1, 1))
            if depth == 0 and kind == "function":
                begin = at + 1
        elif char == "{":
            kind = opens(code[begin:at])
            if kind == "scope":
                begin = at + 1
            else:
                depth, first = 1, line
        elif char in ";}":
            begin = at + 1
    return lengths


def test_no_file_is_long():
    lines = {f: f.read_text().count("\n") for f in files((".py", *CPP))}
    assert len(lines) > 300
    assert {str(f.relative_to(ROOT)): n for f, n in lines.items() if n > MOST_LINES} == {}


def test_lines_of_cpp_are_short():
    """clang-format leaves comments alone; ruff looks at those of Python."""
    long = [
        f"{f.relative_to(ROOT)}:{number}"
        for f in files(CPP)
        for number, line in enumerate(f.read_text().splitlines(), 1)
        if len(line) > MOST_CHARACTERS
    ]
    assert long == []


def test_functions_of_python_are_short():
    lengths = [n for f in files((".py",)) for n in python_lengths(f.read_text())]
    assert len(lengths) > 1000 and p90(lengths) <= MOST_OF_NINE_IN_TEN, p90(lengths)


def test_functions_of_cpp_are_short():
    """Of csrc: main() and tables of cases make those of tests longer."""
    lengths = [n for f in files(CPP) if ROOT / "csrc" in f.parents for n in cpp_lengths(f.read_text())]
    assert len(lengths) > 2000 and p90(lengths) <= MOST_OF_NINE_IN_TEN, p90(lengths)


def test_p90():
    assert p90([5]) == 5
    assert p90(list(range(1, 11))) == 9
    assert p90([1] * 89 + [30] * 11) == 30 and p90([1] * 90 + [30] * 10) == 1


def test_lengths_of_python():
    text = 'def f():\n    """Two\n    lines."""\n    x = 1\n\n    def g():\n        return 2\n\n    return x\n'
    assert python_lengths(text) == [6, 1]
    assert python_lengths('class A:\n    async def f(self):\n        """Nothing else."""\n') == [0]


@pytest.mark.parametrize(
    "text, lengths",
    [
        ("int f() { return 1; }", [1]),
        ("int f() {\n  if (x) {\n    y();\n  }\n}\nint g();\nvoid h() {\n  y();\n}", [3, 1]),
        (
            "namespace a {\nstruct B : C<D> {\n  int x{3};\n  bool f() const override {\n    return x;\n  }\n};\n}",
            [1],
        ),
        ("A::A(int x) : a_{x}, b(x) {\n  f();\n  g();\n}", [2]),
        ("template <class T = X<int>>\nauto f(T x = 3) -> int\n  requires(n == 2)\n{\n  a();\n  b();\n}", [2]),
        ("bool operator==(A a, A b) {\n  return 1;\n}\nint operator()() {\n\n\n}", [1, 2]),
        (
            "constexpr A kList[] = {f(1), {2}};\nint x{f()};\nauto g = [](int i) { return i; };\nenum class E { a };",
            [],
        ),
        ('void f() {\n  s = "}";  // }\n  c = \'}\';\n  /* }\n  */\n  r = R"(\n})";\n}', [6]),
        ("#define M(x) { x\nvoid f() {\n  auto g = [&](int i) {\n    return i;\n  };\n}", [3]),
        ("template <>\nstruct F<A> {\n  static void f(A a) {\n    g(A{a});\n  }\n};\nvoid h() {\n  i();\n}", [1, 1]),
    ],
)
def test_lengths_of_cpp(text: str, lengths: list[int]):
    assert cpp_lengths(text) == lengths
