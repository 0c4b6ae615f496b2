"""What of Triton functions does not compile: the line that matters, and what becomes of the process."""

import re
import shutil
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from triton_compiled import DIGESTS, PLAIN, compiled, recipe
from triton_installed import EACH_TRITON, FUNCTIONS, ONE_TRITON, chain

from aot_tune.compile import target_by_name
from aot_tune.compile.diagnostics import first_error
from aot_tune.compile.toolchain import Object
from aot_tune.render.triton.recipe import Recipe, with_recipes

pytestmark = pytest.mark.slow
BLOCKED = {"x": "*fp32", "BLOCK": "constexpr"}


def broken(search: list[str], one: Recipe, target: str, folder: Path, timeout: float = 120.0) -> tuple[str, Object]:
    """The line that matters of a compile that fails, and the outcome."""
    outcome, out = compiled(search, one, target, folder, timeout=timeout)
    assert outcome.status != "ok"
    assert not out.exists()
    return first_error(outcome.log), outcome


def wrong(search: list[str], name: str, signature: dict[str, str], **constexprs: Any) -> Recipe:
    return recipe(search, f"wrong.py:{name}", signature=signature, constexprs=constexprs)


@EACH_TRITON
def test_an_error_names_the_line_of_the_function_that_has_it(search: list[str], tmp_path: Path) -> None:
    line, outcome = broken(search, wrong(search, "calls_wrong", BLOCKED, BLOCK=64), "cuda-sm_90a", tmp_path)
    assert line.startswith("triton_functions/wrong.py:")
    number = int(line.split(":")[1])
    assert "tl.no_such_function" in (FUNCTIONS / "wrong.py").read_text().splitlines()[number - 1]
    assert "no_such_function" in line.partition("error: ")[2]
    assert outcome.lasting
    line, outcome = broken(search, wrong(search, "refuses", BLOCKED, BLOCK=64), "cuda-sm_90a", tmp_path)
    assert "BLOCK must be over 64" in line
    assert outcome.lasting


@ONE_TRITON
def test_a_config_that_does_not_fit_says_how_much_is_there(search: list[str], tmp_path: Path) -> None:
    signature = {"a": "*fp32", "b": "*fp32", "c": "*fp32", "BLOCK": "constexpr"}
    one = msgspec.structs.replace(wrong(search, "needs_much", signature, BLOCK=64), options={"num_stages": 6})
    line, outcome = broken(search, one, "cuda-sm_86", tmp_path)
    assert re.search(r"needs_much needs \d{6} bytes of shared memory, cuda-sm_86 has 101376 for a block", line)
    assert outcome.lasting


@EACH_TRITON
def test_code_that_must_have_integers_of_32_bits_says_how(search: list[str], tmp_path: Path) -> None:
    """What is compiled without assumptions has 64, which offsets of descriptors may not have."""
    for kind in ("i64", "i32"):
        signature = {"x": "*fp32", "n": kind, "BLOCK": "constexpr"}
        outcome, _ = compiled(search, wrong(search, "offset_of_64_bits", signature, BLOCK=64), "cuda-sm_90a", tmp_path)
        said = "" if kind == "i32" else "in `rows.store([n], rows.load([n]) + 1)` (64 bits wide here: n; `narrow` of"
        assert (outcome.status, said in outcome.log) == ("ok" if kind == "i32" else "compile-failed", True)


@ONE_TRITON
def test_a_crash_is_a_failure_and_the_next_compile_works(search: list[str], tmp_path: Path) -> None:
    line, outcome = broken(search, wrong(search, "crashes", BLOCKED, BLOCK=64), "cuda-sm_90a", tmp_path)
    assert outcome.status == "compile-failed"
    assert "its process died of signal 6" in line
    assert not outcome.lasting
    after, _ = compiled(search, recipe(search, "rows.py:plain", **PLAIN), "cuda-sm_90a", tmp_path)
    assert after.status == "ok"


@ONE_TRITON
def test_a_compile_that_takes_too_long_is_killed(search: list[str], tmp_path: Path) -> None:
    compiled(search, recipe(search, "rows.py:plain", **PLAIN), "cuda-sm_90a", tmp_path)  # its process is started
    (tmp_path / "object.o").unlink()
    began = time.monotonic()
    line, outcome = broken(search, wrong(search, "hangs", BLOCKED, BLOCK=64), "cuda-sm_90a", tmp_path, timeout=2.0)
    assert time.monotonic() - began < 8
    assert outcome.status == "timeout"
    assert "longer than 2 s" in line


@ONE_TRITON
def test_other_failures_say_what_is_wrong(search: list[str], tmp_path: Path) -> None:
    plain = recipe(search, "rows.py:plain", **PLAIN)
    replaced = msgspec.structs.replace
    cases = {
        "has no launch option 'num_warp'": replaced(plain, options={"num_warp": 8}),
        "the constexpr 'BLOCK' has no value": replaced(plain, constexprs={}),
        "has other parameters": replaced(plain, signature={"x": "*bf16", "BLOCK": "constexpr"}),
        "there is no file triton_functions/gone.py": replaced(plain, function="triton_functions/gone.py:plain"),
        "num_ctas > 1 requires": replaced(plain, options={"num_ctas": 2}),
        "power of 2": replaced(plain, options={"num_warps": 3}),
    }
    for words, one in cases.items():
        line, outcome = broken(search, one, "cuda-sm_80", tmp_path)
        assert words in line
        assert outcome.lasting
    outcome = chain(search).compile("int x;", target_by_name("cuda-sm_80"), tmp_path / "o", 10)
    assert "no recipe" in first_error(outcome.log)
    source = with_recipes([plain], "#error wrong launcher\n")
    outcome = chain(search).compile(source, target_by_name("cuda-sm_80"), tmp_path / "o", 60)
    assert "wrong launcher" in first_error(outcome.log)


@ONE_TRITON
def test_a_changed_source_is_compiled_as_it_is_now(search: list[str], tmp_path: Path) -> None:
    """A process that has loaded the old state is replaced; a digest that nothing has now is a failure."""
    shutil.copytree(FUNCTIONS, tmp_path / "triton_functions")
    first = recipe(search, "rows.py:plain", tmp_path, **PLAIN)
    before, _ = compiled(search, first, "cuda-sm_90a", tmp_path / "a", tmp_path)
    parts = tmp_path / "triton_functions" / "parts.py"
    parts.write_text(parts.read_text().replace("SCALE = tl.constexpr(2.0)", "SCALE = tl.constexpr(3.0)"))
    del DIGESTS[search[0], str(tmp_path), "rows.py:plain"]
    second = recipe(search, "rows.py:plain", tmp_path, **PLAIN)
    assert first.digest != second.digest
    after, _ = compiled(search, second, "cuda-sm_90a", tmp_path / "b", tmp_path)
    assert (before.status, after.status) == ("ok", "ok")
    assert before.device != after.device
    stale, _ = compiled(search, first, "cuda-sm_90a", tmp_path / "c", tmp_path)
    assert stale.status == "compile-failed"
    assert "has changed since it was read" in stale.log
    assert not stale.lasting
