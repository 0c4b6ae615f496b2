"""The wheel's library answers the same on all CPU levels, and in all threads."""

import json

from environments import Venv, environment, run

PROGRAM = """
import json, sys
import numpy as np
import aot_tune.ops as ops
rng = np.random.default_rng(7)
worst = 0.0
for m, n, k in ((1, 768, 768), (16, 768, 768), (33, 65, 129), (2, 3, 4)):
    a, b = (rng.standard_normal(s).astype("f4") for s in ((m, k), (k, n)))
    for b in (b, np.ascontiguousarray(b.T).T):
        want = a.astype("f8") @ b
        worst = max(worst, float(np.abs(np.from_dlpack(ops.gemm(a, b)) - want).max() / np.sqrt(k)))
x = rng.standard_normal((17, 4096)).astype("f4")
e = np.exp(x - x.max(1, keepdims=True), dtype="f8")
worst = max(worst, float(np.abs(np.from_dlpack(ops.softmax(x)) - e / e.sum(1, keepdims=True)).max()))
w = np.ones(4096, "f4")
want = x / np.sqrt((x.astype("f8") ** 2).mean(1, keepdims=True) + 1e-5)
worst = max(worst, float(np.abs(np.from_dlpack(ops.rms_norm(x, w)) - want).max()))
print(json.dumps([worst, ops.explain("softmax", R=16, D=768)]))
"""


def ask(venv: Venv, **given: str) -> tuple[float, dict[str, str]]:
    return tuple(json.loads(run([venv.python, "-c", PROGRAM], env=environment(**given)).splitlines()[-1]))


def test_a_lower_level_answers_and_the_best_one_is_the_default_and_cannot_be_raised(venv: Venv) -> None:
    best = ask(venv)[1]["target"]
    for level, target in (("1", "cpu-x86-64"), ("", best), ("6", best)):
        worst, explained = ask(venv, AOT_TUNE_CPU_LEVEL=level)
        assert worst < 1e-5
        assert explained["target"] == target
        assert ("generic" in explained["variant"]) == (level == "1")  # nothing was tuned for it


def test_a_level_that_does_not_exist_is_told(venv: Venv) -> None:
    said = run([venv.python, "-c", PROGRAM], env=environment(AOT_TUNE_CPU_LEVEL="v9"), status=1)
    assert "AOT_TUNE_CPU_LEVEL" in said
    assert "v9" in said
