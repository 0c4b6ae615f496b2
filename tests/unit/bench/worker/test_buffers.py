"""Guarded memory: alignment, canaries and pages without access; and inputs that are the same everywhere."""

import ctypes
import itertools
import json
import mmap
import subprocess
import sys

import numpy as np
from bundled import OPERATORS
from hypothesis import given, settings
from hypothesis import strategies as st
from places import ROOT

from aot_tune.bench.protocol.measurement_records import Check
from aot_tune.bench.worker.cpu_engine import CpuEngine, Region
from aot_tune.bench.worker.engine import Placement
from aot_tune.bench.worker.inputs import draw, fill
from aot_tune.spec import problem

placements = st.sampled_from(CpuEngine.placements)
alignments = st.sampled_from([4, 8, 16, 32, 64])


@settings(max_examples=30)
@given(st.integers(0, 9000), st.integers(0, 200), alignments, placements, st.integers(0, 20))
def test_the_aligned_address_is_aligned_to_that_and_no_more(
    size: int, first: int, alignment: int, placement: Placement, stagger: int
) -> None:
    region = Region(size, first * 4, alignment, placement, stagger * 64)
    address = region.address + first * 4
    assert address % alignment == 0
    assert alignment == 64 or address % (2 * alignment) != 0
    assert region.damage() == ""
    high = -(-(region.address + size) // mmap.PAGESIZE) * mmap.PAGESIZE
    if placement == "end":
        assert high - region.address - size < 64 + 4
    if placement == "start":
        assert region.address % mmap.PAGESIZE < 64


@settings(max_examples=30)
@given(st.integers(0, 5000), placements, st.data())
def test_a_write_outside_is_found_and_located(size: int, placement: Placement, data: st.DataObject) -> None:
    region = Region(size, placement=placement)
    zones = [("past its end", 0, region._after), ("before its start", 0, region._before)]
    name, _, room = data.draw(st.sampled_from([z for z in zones if z[2]] or [("", 0, 0)]))
    if not room:
        return
    distance = data.draw(st.integers(0, room - 1))
    at = region.address + size + distance if name == "past its end" else region.address - 1 - distance
    ctypes.memset(at, 0, 1)
    assert region.damage() == f"1 bytes written {distance} bytes {name}"
    region.heal()
    assert region.damage() == ""


def test_the_same_seed_gives_the_same_bytes_in_another_process() -> None:
    code = (
        "import sys, json, hashlib\nfrom aot_tune.bench.protocol.measurement_records import Check\n"
        "from aot_tune.bench.worker.inputs import draw\n"
        "from aot_tune.spec.load_operators import bundled_templates, load_operator\nfrom aot_tune.spec import problem\n"
        "op = load_operator(bundled_templates() / 'layer_norm')\n"
        "check = Check(problem=problem(R=3, D=5, present=['weight', 'bias']))\n"
        "digest = lambda t: hashlib.sha256(draw(op, check, t, 35, 7).tobytes()).hexdigest()\n"
        "told = {t.name: digest(t) for t in op.inputs}\n"
    )
    here: dict[str, dict[str, str]] = {}
    exec(code, here)  # the same text as in the other process
    argv = [sys.executable, "-c", f"{code}print(json.dumps(told))\n"]
    env = {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "1"}
    assert json.loads(subprocess.check_output(argv, env=env, timeout=60)) == here["told"]
    assert len(set(here["told"].values())) == len(here["told"])


def test_values_depend_on_seed_problem_and_tensor_and_repeat_with_a_prime_period() -> None:
    operator = OPERATORS["gemm"]
    check, other = Check(problem=problem(M=3, N=5, K=7)), Check(problem=problem(M=3, N=5, K=8))
    a, b = operator.tensor("a"), operator.tensor("b")
    drawn = [draw(operator, c, t, 50, s) for c, t, s in ((check, a, 1), (check, a, 2), (check, b, 1), (other, a, 1))]
    for one, two in itertools.combinations(drawn, 2):
        assert not np.array_equal(one, two)
    view = np.empty(2_100_000, dtype=np.float32)
    fill(operator, check, {"a": view}, 1)
    assert np.array_equal(view[:1_000_003], view[1_000_003:2_000_006])
    assert np.array_equal(view[:99_994], view[2_000_006:])
    assert abs(view.mean()) < 0.01
    assert abs(view.std() - 1) < 0.01
