"""Guarded memory of a GPU, on the host's tensors, and comparisons of elements that are no plain numbers."""

import ctypes
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stand_ins import StandIn, build

torch = pytest.importorskip("torch")

from host_engine import mapper_of  # noqa: E402

from aot_tune.bench.worker.comparison import compare  # noqa: E402
from aot_tune.bench.worker.cuda_memory import ApartMemory, EdgeMemory, GuardedMemory, Truths  # noqa: E402
from aot_tune.bench.worker.engine import Want  # noqa: E402
from aot_tune.bench.worker.reference_results import EXACT, Bounds, Limits  # noqa: E402
from aot_tune.spec import Tensor  # noqa: E402

CPU = torch.device("cpu")
alignments = st.sampled_from([0, 1, 2, 4, 16, 64, 1024])


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 50), alignments), min_size=1, max_size=5), st.data())
def test_pieces_are_aligned_as_asked_and_a_write_outside_is_found(rows: Any, data: st.DataObject) -> None:
    wants = [Want(f"t{i}", size, origin * max(a, 1), a) for i, (size, origin, a) in enumerate(rows)]
    arena = GuardedMemory(CPU, wants)
    for want in wants:
        piece = arena.pieces[want.name]
        address = piece.address + want.origin
        assert piece.size == want.size == piece.storage.numel()
        assert want.size == 0 or piece.address == piece.storage.data_ptr()
        assert address % (2 * want.alignment or 512) == want.alignment
        piece.storage.fill_(0x5A)
    assert not arena.damaged()
    number = data.draw(st.integers(0, len(wants) - 1))
    distance = data.draw(st.integers(0, 1000))
    after = data.draw(st.booleans())
    piece = arena.pieces[f"t{number}"]
    at = piece.address - arena._base + (piece.size + distance if after else -1 - distance)
    arena._memory[at] = 0
    assert arena.damaged()
    place = f"{distance} bytes past its end" if after else f"{distance} bytes before its start"
    assert arena.damage() == (f"t{number}", f"1 bytes written {place}")
    arena.heal()
    assert not arena.damaged()
    assert arena.damage() == ("", "")


def test_large_pieces_lie_where_torch_would_put_them_and_have_both_their_guards() -> None:
    arena = GuardedMemory(CPU, [Want("x", 11 << 20), Want("w", 100), Want("y", 10 << 20, 64), Want("z", 5 << 20)])
    for name, origin, step in (("x", 0, 2 << 20), ("w", 0, 512), ("y", 64, 2 << 20), ("z", 0, 512)):
        assert (arena.pieces[name].address + origin) % step == 0
    for name in arena.pieces:
        for at, place in ((-1, "0 bytes before its start"), (arena.pieces[name].size, "0 bytes past its end")):
            arena._memory[arena.pieces[name].address - arena._base + at] = 0
            assert arena.damaged()
            assert arena.damage() == (name, f"1 bytes written {place}")
            arena.heal()
    assert len(arena._all) < 10 * 4096  # a gap of a segment is not looked at byte by byte


def may_be_read(address: int) -> bool:
    """Whether a page of this process may be."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        place, rights, *_ = line.split()
        begin, end = (int(part, 16) for part in place.split("-"))
        if begin <= address < end:
            return rights.startswith("r")
    return False


def test_mapped_pieces_end_where_memory_ends(tmp_path: Path) -> None:
    driver = StandIn(build(tmp_path, "libcuda.of_memory.so"))  # other tests load one by its usual name
    assert mapper_of(driver).works
    driver.library.stub_clear()
    mapper, wants = mapper_of(driver), [Want("x", 1000, 0, 64), Want("y", 70_000, 8, 4), Want("none", 0, 0, 64)]
    arena = EdgeMemory(mapper, wants)
    for want in wants:
        piece = arena.pieces[want.name]
        assert (piece.address + want.origin) % (2 * want.alignment) == want.alignment
        end = piece.address + want.size + (arena._base - piece.address - want.size) % mapper.unit
        assert end - piece.address - want.size < 2 * want.alignment
        assert may_be_read(end - 1)
        assert not may_be_read(end)
        piece.storage.fill_(0x5A)
    assert not arena.damaged()
    arena._memory[arena.pieces["y"].address - arena._base - 3] = 0
    assert arena.damage() == ("y", "1 bytes written 2 bytes before its start")
    assert arena.bytes == (64 + 128 + 64) << 10
    del arena, piece
    assert driver.log() == [*(f"create {n} of type 1 on 0" for n in (64, 128, 64)), "free 448"]
    driver.library.stub_set(b"create", ctypes.c_int64(2))
    with pytest.raises(torch.OutOfMemoryError, match="the driver maps no 65536 bytes"):
        EdgeMemory(mapper, wants)
    assert not mapper_of(driver).works
    driver.library.stub_set(b"granularity", ctypes.c_int64(801))
    assert not mapper_of(driver).works


def test_pieces_that_a_sanitizer_watches_have_memory_of_their_own() -> None:
    arena = ApartMemory(CPU, [Want("x", 1000, 8, 4), Want("y", 7, 0, 64), Want("none", 0)])
    for name, piece in arena.pieces.items():
        assert piece.address == piece.storage.data_ptr() or not piece.size
        assert piece.storage.untyped_storage().nbytes() == piece.storage.storage_offset() + piece.size, name
    arena.heal()


BOUNDS = Bounds(absolute=0.1, relative=0.01)


def test_of_the_bytes_that_are_true_only_one_is_right() -> None:
    """What a candidate never wrote, and was poisoned, is not taken for true."""
    expected = Truths(Tensor("y", (2,), "bool", output=True), torch.ones(2, dtype=torch.float64), Limits(bounds=EXACT))
    for byte, right in ((1, True), (255, False)):
        got = torch.tensor([1, byte], dtype=torch.uint8).view(torch.bool)
        assert right or not float(expected.worst(got)) <= 1
        assert (expected.judge(got)[0] == "") == right


INF, NAN = math.inf, math.nan


RIGHT = ((NAN, NAN), (INF, INF), (INF, 1e39))
WRONG = ((-INF, INF), (NAN, 1.0), (1.0, NAN), (INF, 1.0), (-INF, 1e39), (INF, NAN), (1e30, INF), (NAN, INF))


def test_nan_and_infinities_must_be_where_the_truth_has_them() -> None:
    """An overflow counts as infinity."""
    for got, want in (*RIGHT, *WRONG):
        of_torch = torch.tensor([got]), torch.tensor([want], dtype=torch.float64)
        of_numpy = np.array([got], np.float32), np.array([want])
        for xp, pair in ((torch, of_torch), (np, of_numpy)):
            with np.errstate(all="ignore"):
                fault, _ = compare(xp, "y", *pair, BOUNDS, 3.4e38)
            assert (fault == "") == ((got, want) in RIGHT), (got, want)
