"""How tests are written: what two of them share lies in a module that is no test."""

import ast
import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
MODULES = sorted(TESTS.rglob("*.py"))
IMPORT = re.compile(r"^\s*(?:from\s+(?:\S+\.)?test_\w+\s+import|(?:from\s+\S+\s+)?import\s.*\btest_\w+)", re.MULTILINE)


def test_a_module_imports_no_test_module() -> None:
    """Nor does a program in one of its strings."""
    for line in (
        "    from tests.unit.test_pipeline import FAST",
        "import linked, test_pipeline as t",
        "from tests.unit import test_pipeline",
    ):
        assert IMPORT.search(f"import re\n{line}\n"), line
    assert len(MODULES) > 100
    assert not [str(p) for p in MODULES if IMPORT.search(p.read_text())]


def private(name: object) -> bool:
    return isinstance(name, str) and name.startswith("_") and not name.startswith("__")


def private_names(source: str) -> list[str]:
    """Private names of the project's modules that a test imports, reads or replaces."""
    modules, found = set[str](), list[str]()
    nodes = list(ast.walk(ast.parse(source)))
    for node in nodes:
        if isinstance(node, ast.Import):
            modules |= {a.asname or a.name for a in node.names if a.name.startswith(("aot_tune", "benchmarks"))}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("aot_tune", "benchmarks")):
            modules |= {a.asname or a.name for a in node.names if a.name.islower()}
            found += [a.name for a in node.names if private(a.name)]
        elif isinstance(node, ast.Assign) and "import_module(" in ast.unparse(node.value):
            modules |= {n.id for t in node.targets for n in ast.walk(t) if isinstance(n, ast.Name)}
    for node in nodes:
        if isinstance(node, ast.Attribute) and private(node.attr) and ast.unparse(node.value) in modules:
            found.append(ast.unparse(node))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("setattr"):
            found += [ast.unparse(a) for a in node.args if ast.unparse(node.args[0]) in modules and is_private_text(a)]
    return found


def is_private_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and private(node.value)


def test_a_test_knows_no_private_name_of_a_module() -> None:
    for lines in (
        "from aot_tune.expr.integer_expressions import _BINARY",
        "import aot_tune.vendor.cublaslt as lt\nlt._sample()",
        "import aot_tune.vendor.cublaslt\naot_tune.vendor.cublaslt._sample()",
        "from aot_tune.vendor import cublaslt\nx = cublaslt._sample",
        "from aot_tune.vendor import cublaslt\nmonkeypatch.setattr(cublaslt, '_sample', 1)",
        "module = importlib.import_module('aot_tune.expr.integer_expressions')\nmodule._BINARY",
    ):
        assert len(private_names(lines)) == 1, lines
    for path in MODULES:
        assert private_names(path.read_text()) == [], path
