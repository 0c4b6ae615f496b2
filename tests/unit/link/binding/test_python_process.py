"""The Python module in its process: memory, threads, the lock, the environment, other interpreters."""

import gc
import itertools
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType

import forked
import linked
import numpy as np
import pytest
import torch
from tensors import Old, Wrapped


def test_a_workspace_of_the_callers(built: linked.Built) -> None:
    code = f"""
ops = linked.load_module(Path({str(built.module)!r}))
a, b = np.ones((4, 3), np.float32), np.ones((3, 5), np.float32)
memory = np.zeros(64)
memory = memory[-memory.ctypes.data % 64 // 8 :][:32]
ops.gemm(a, b, workspace=memory)
print(memory.tobytes().count(1))
nowhere = linked_cuda.OnDevice(np.zeros((3, 0), np.float32), (1, 0))
nowhere.tensor.data = None
for given in (memory, memory[:2], 99, nowhere, 0):
    print(ops.explain("gemm", a, b, workspace=given)["variant"])
for bad in ({{"workspace": 100}}, {{"device": "cpu"}}, {{"workspace": memory[::2]}}, {{"stream": "fast"}}):
    try:
        ops.gemm(a, b, **bad)
    except ops.Error as error:
        print(error)
"""
    said = forked.python(code, AOT_TUNE_CPU_LEVEL="2").splitlines()
    assert said[:6] == ["100", "small_2", *["plain"] * 4]
    wanted = (
        "'workspace' is of type int",
        "no argument 'device'",
        "the workspace has gaps",
        "stream is 'fast', wanted",
    )
    for line, part in zip(said[6:], wanted, strict=True):
        assert part in line


def test_nothing_leaks(ops: ModuleType) -> None:
    x, weight = (np.random.default_rng(0).standard_normal(s).astype(np.float32) for s in ((4, 6), 6))
    torch_x, torch_weight, out = torch.from_numpy(x), torch.from_numpy(weight), np.empty_like(x)

    def work() -> None:
        for make in (np.asarray, Wrapped, Old):
            ops.rms_norm(make(x), make(weight), residual_out=True)
            ops.rms_norm(make(x), make(weight), out=out)
        ops.rms_norm(torch_x, torch_weight, residual_out=True)
        ops.explain("gemm", M=3, N=4, K=5)
        for bad in ({"x": x[0, :5]}, {"out": x}, {"z": 1}, {"weight": 3}, {"x": torch.empty(4, 6, device="meta")}):
            with pytest.raises(ops.Error):
                ops.rms_norm(**{"x": x, "weight": weight, **bad})

    held = (x, weight, out, torch_x, torch_weight, ops, np.ndarray, True)
    for _ in range(20):
        work()
    gc.collect()
    counts, blocks = [sys.getrefcount(o) for o in held], [sys.getallocatedblocks()]
    for _ in range(3):
        for _ in range(300):
            work()
        gc.collect()
        blocks.append(sys.getallocatedblocks())
    after = [sys.getrefcount(o) for o in held]
    assert max(abs(a - b) for a, b in zip(after[:-2], counts[:-2], strict=True)) <= 2
    assert min(b - a for a, b in itertools.pairwise(blocks)) < 300  # caches of others grow once


def test_threads_have_their_own_messages_and_workspaces(ops: ModuleType) -> None:
    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(40):
            m, n, k = (int(v) for v in rng.integers(1, 90, 3))
            a, b = rng.standard_normal((m, k)).astype(np.float32), rng.standard_normal((k, n)).astype(np.float32)
            out = ops.gemm(a, b)
            np.testing.assert_allclose(out - out.ravel()[0], a @ b - (a @ b).ravel()[0], rtol=1e-5, atol=1e-3)
            with pytest.raises(ValueError, match=f"extent {k + seed + 1},"):
                ops.gemm(a, np.zeros((k + seed + 1, n), np.float32))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))


def test_the_lock_is_released_for_long_calls(ops: ModuleType) -> None:
    a, b = np.ones((300, 300), np.float32), np.ones((300, 300), np.float32)
    ticks, done = [0], threading.Event()
    switch = sys.getswitchinterval()

    def count() -> None:
        while not done.is_set():
            ticks[0] += 1
            time.sleep(1e-5)  # gives the lock back

    thread = threading.Thread(target=count)
    sys.setswitchinterval(100)  # nobody gets the lock unless it is given away
    try:
        thread.start()
        before = ticks[0]
        for _ in range(200):  # each takes milliseconds; where the cores are busy, the thread may wait for one
            ops.gemm(a, b)
            if (during := ticks[0] - before) > 0:
                break
    finally:
        done.set()
        sys.setswitchinterval(switch)
        thread.join()
    assert during > 0


def test_import_needs_no_framework(built: linked.Built) -> None:
    code = f"""
import importlib.machinery, importlib.util, sys
sys.modules["numpy"] = sys.modules["torch"] = None
loader = importlib.machinery.ExtensionFileLoader("ops", {str(built.module)!r})
ops = importlib.util.module_from_spec(importlib.util.spec_from_loader("ops", loader))
loader.exec_module(ops)
print(ops.explain("gemm", M=1, N=2, K=3)["operator"])
try:
    ops.gemm(1, 2)
except TypeError as error:
    print(error)
"""
    run = [sys.executable, "-I", "-S", "-c", code]
    out = subprocess.run(run, check=True, capture_output=True, text=True, env={"PATH": os.environ["PATH"]}).stdout
    assert out.splitlines()[0] == "gemm"
    assert "'a' is of type int" in out


def test_only_the_stable_abi_is_used(built: linked.Built) -> None:
    audit = [sys.executable, "-m", "abi3audit", "--assume-minimum-abi3", "3.10", "--strict", "--report"]
    done = subprocess.run([*audit, str(built.module)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"is_abi3": true' in done.stdout
