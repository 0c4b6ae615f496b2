"""Which changes of what a reference uses make its measurements those of another operator."""

import os
import subprocess
import sys
from pathlib import Path

from aot_tune.database import operator_digest
from aot_tune.spec.load_operators import load_operator

OPERATOR = """
import functools
from dataclasses import dataclass

import numpy as np

from aot_tune.spec import Kernel, Operator, Tensor, dims, problem

from . import scales
from .helpers import Rule, shift, times
from .wrap import doubled

N, = dims("N")
TABLE = {"up": [1.0, 2.0], "down": {3.0, "four"}}
ARRAY = np.array([1.0, 2.0])
BESIDE = [5]
_pick, _other = (lambda x: x + 1), (lambda x: x + 2)


@dataclass
class Settings:
    low: float = 0.5


SETTINGS = Settings(0.25)


@doubled
def decorated(x):
    return x


@functools.lru_cache
def kept(width):
    return width * 2


def with_default(x, by=scales.BY):
    return x * by


def falling(n):
    return n + falling(n - 1) if n else 0


def make(by):
    def inner(x):
        return x * by
    return inner


closed = make(7)
part = functools.partial(shift, by=9)


def reference(xp, call):
    y = times(call.x) * scales.inner.FACTOR + TABLE["up"][0] + ARRAY[0] + SETTINGS.low
    y = y + falling(3)
    y = decorated(with_default(closed(part(_pick(_other(y)))))) + kept(3)
    return {"y": Rule().apply(y)}


operator = Operator(
    name="scaled",
    dims=("N",),
    tensors=(Tensor("x", (N,)), Tensor("y", (N,), output=True)),
    reference=reference,
    flops=N,
    workload=(problem(N=16),),
    kernels=(Kernel("generic", "scaled/generic.cpp.j2", generic=True),),
)
"""
FILES = {
    "operator.py": OPERATOR,
    "helpers.py": """
import functools

from .deeper import SCALE, deep

class Base:
    offset = 1

class Rule(Base):
    names = ("a", "b")
    def apply(self, y):
        return y + self.offset + self.bonus + self.share
    @property
    def bonus(self):
        return 4
    @functools.cached_property
    def share(self):
        return 0.5
    @staticmethod
    def unused():
        return 0

def times(x):
    return deep(x) * SCALE

def shift(x, by):
    return x + by

def never(x):
    return x
""",
    "deeper.py": "SCALE = 3\n\ndef deep(x):\n    return x + 11\n",
    "scales.py": "from . import inner\n\nBY = 13\nUNUSED = 1\n",
    "inner.py": "FACTOR = 17\nOTHER = 2\n",
    "wrap.py": """
import functools

def doubled(function):
    @functools.wraps(function)
    def outer(*args):
        return 2 * function(*args)
    return outer
""",
}


def write(folder: Path, file: str = "", old: str = "", new: str = "") -> Path:
    """The operator with a text of one file changed; the folder is another each time, as checkouts are."""
    folder = folder / "scaled"
    folder.mkdir(parents=True)
    for name, text in FILES.items():
        assert name != file or text.count(old) == 1, old
        (folder / name).write_text(text.replace(old, new) if name == file else text)
    return folder


def digest_of(folder: Path) -> str:
    return operator_digest(load_operator(folder))


USED = (
    ("helpers.py", "deep(x) * SCALE", "SCALE * deep(x)"),
    ("helpers.py", "offset = 1", "offset = 2"),
    ("helpers.py", 'names = ("a", "b")', 'names = ("a", "c")'),
    ("helpers.py", "y + self.offset", "y - self.offset"),
    ("helpers.py", "return 4", "return 5"),
    ("helpers.py", "return 0.5", "return 0.25"),
    ("operator.py", "n + falling(n - 1)", "n - falling(n - 1)"),
    ("helpers.py", "return x + by", "return x - by"),
    ("deeper.py", "SCALE = 3", "SCALE = 4"),
    ("deeper.py", "x + 11", "x + 12"),
    ("scales.py", "BY = 13", "BY = 14"),
    ("inner.py", "FACTOR = 17", "FACTOR = 18"),
    ("wrap.py", "2 * function", "3 * function"),
    ("operator.py", '"up": [1.0, 2.0]', '"up": [1.0, 2.5]'),
    ("operator.py", '{3.0, "four"}', '{3.0, "five"}'),
    ("operator.py", "np.array([1.0, 2.0])", "np.array([1.0, 2.5])"),
    ("operator.py", "Settings(0.25)", "Settings(0.125)"),
    ("operator.py", "(lambda x: x + 2)", "(lambda x: x + 3)"),
    ("operator.py", "width * 2", "width * 3"),
    ("operator.py", "make(7)", "make(8)"),
    ("operator.py", "by=9", "by=10"),
    ("operator.py", "    def inner(x):\n        return x * by", "    def inner(x):\n        return by * x"),
)
UNUSED = (
    ("helpers.py", "def never(x):\n    return x", "def never(x):\n    return -x"),
    ("scales.py", "UNUSED = 1", "UNUSED = 2"),
    ("inner.py", "OTHER = 2", "OTHER = 3"),
    ("operator.py", "BESIDE = [5]", "BESIDE = [6]"),
)
"""Changes by file, old text and new text."""


def test_a_change_of_what_a_reference_uses_is_another_operator(tmp_path: Path) -> None:
    plain = digest_of(write(tmp_path / "plain"))
    assert digest_of(write(tmp_path / "again")) == plain
    for number, change in enumerate(USED):
        assert digest_of(write(tmp_path / str(number), *change)) != plain, change


def test_what_a_reference_does_not_use_leaves_its_measurements(tmp_path: Path) -> None:
    plain = digest_of(write(tmp_path / "plain"))
    for number, change in enumerate(UNUSED):
        assert digest_of(write(tmp_path / str(number), *change)) == plain, change


def test_all_processes_agree(tmp_path: Path) -> None:
    """Whatever the order of their sets, and wherever objects lie."""
    folder = write(tmp_path)
    code = (
        "from pathlib import Path; from aot_tune.spec.load_operators import load_operator;"
        "from aot_tune.database import operator_digest;"
        f"print(operator_digest(load_operator(Path({str(folder)!r}))))"
    )
    env = {**os.environ, "PYTHONHASHSEED": "3"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True)
    assert done.stdout == f"{digest_of(folder)}\n".encode()


def test_what_a_folder_beside_the_operator_has_counts(tmp_path: Path) -> None:
    digests = []
    for number, factor in enumerate((2, 2, 3)):
        folder = write(tmp_path / str(number), "helpers.py", "offset = 1", "offset = 1")
        shared = folder.parent / "common"
        shared.mkdir()
        (shared / "rules.py").write_text(f"def scaled(x):\n    return x * {factor}\n")
        text = (folder / "helpers.py").read_text()
        (folder / "helpers.py").write_text(f"from ..common.rules import scaled\n{text}\nshift = scaled\n")
        digests.append(digest_of(folder))
    assert digests[0] == digests[1] != digests[2]
