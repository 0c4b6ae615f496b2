"""AOT_TUNE_EXCLUDE_BACKENDS: a library without the kernels of some backends, tuned or replayed from the same record."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from aot_tune.bench.devices.family import policy_for
from aot_tune.bench.protocol.measurement_records import Device, Measurement, Policy
from aot_tune.compile import Object, target_by_name, toolchain_for
from aot_tune.database import make_database, operator_digest, save_database
from aot_tune.pipeline.records.lookup import recorded_evidence
from aot_tune.pipeline.session import Session
from aot_tune.pipeline.shipping.finish import choose
from aot_tune.plan.library_plan import Request, make_plan
from aot_tune.render import Renderer, candidate_for
from aot_tune.spec.load_operators import load_operator, load_operators, without_backends
from aot_tune.support.errors import OptionError, ToolchainError
from aot_tune.support.progress import Progress

OPERATOR = """
from aot_tune.spec import Kernel, Operator, Tensor, dims, problem

(N,) = dims("N")
operator = Operator(
    name="twice",
    dims=("N",),
    tensors=(Tensor("x", (N,)), Tensor("y", (N,), output=True)),
    reference=lambda xp, call: {"y": 2 * call.x},
    flops=N,
    workload=(problem(N=64), problem(N=128)),
    kernels=(
        Kernel("plain", "twice/any.j2", generic=True),
        Kernel("plain_cuda", "twice/any.j2", backend="nvcc", generic=True),
        Kernel("own", "twice/any.j2", backend="nvcc"),
        Kernel("vendor", "twice/any.j2", backend="cublaslt"),
        Kernel("composed", "twice/any.j2", backend="nvcc", stages=("cublaslt", "added")),
    ),
)
"""
TEMPLATE = """
{{ prelude() }} {{ no_workspace() }}
{{ kernel_signature("preload") }} { return 0; }
{{ kernel_signature("launch") }} { return 0; }
"""
TIMES = {"plain_cuda": 900.0, "own": 200.0, "vendor": 100.0, "composed": 150.0}
TARGET = target_by_name("cuda-sm_90a")


@pytest.fixture
def templates(tmp_path: Path) -> Path:
    folder = tmp_path / "templates" / "twice"
    folder.mkdir(parents=True)
    (folder / "operator.py").write_text(OPERATOR)
    (folder / "any.j2").write_text(TEMPLATE)
    return folder.parent


@pytest.fixture
def tuning(templates: Path, tmp_path: Path) -> Path:
    """A record on a card that nobody has; its objects were never made."""
    operator = load_operator(templates / "twice")
    device = Device(family="cuda", name="Some card", slug="cuda-some-card", identity={"capability": 90})
    policy = policy_for("cuda", Policy())
    compiled, measurements = [], []
    for kernel in operator.kernels[1:]:
        target = toolchain_for(kernel.backend).baselines()[0] if kernel.generic else TARGET
        rendered = Renderer([templates]).render(operator, candidate_for(operator, kernel, {}, target), target)
        made = Object(
            key="",
            path="",
            digest=kernel.name,
            device=f"device code of {kernel.name}",
            symbol=rendered.symbol,
            source=rendered.digest,
            target=target.name,
            status="ok",
        )
        compiled.append((rendered, made))
        measurements += [
            Measurement(
                candidate=rendered.candidate.id,
                code=made.code,
                problem=p,
                device=device.digest,
                policy=policy.digest,
                status="ok",
                screen=(TIMES[kernel.name],) * 4,
                error=0.1,
                bitwise=True,
            )
            for p in operator.workload_for("cuda")
        ]
    database = make_database(
        operator=operator.name,
        contract=operator_digest(operator),
        device=device,
        policy=policy,
        toolchains={},
        baselines={},
        compiled=compiled,
        measurements=measurements,
    )
    save_database(tmp_path / "tuning", database)
    return tmp_path / "tuning"


@contextmanager
def replaying(templates: Path, tuning: Path, cache: Path, exclude: str) -> Iterator[Session]:
    try:
        toolchain_for("nvcc").identity()
    except ToolchainError as error:
        pytest.skip(f"no CUDA compiler: {error.what}")
    options = {
        "AOT_TUNE_MODE": "replay",
        "AOT_TUNE_TARGETS": TARGET.name,
        "AOT_TUNE_CACHE_DIR": str(cache),
        "AOT_TUNE_EXCLUDE_BACKENDS": exclude,
    }
    request = Request(
        name="ops", prefix="mine", header="ops.h", templates=(str(templates),), database=str(tuning), options=options
    )
    plan, paths, _ = make_plan(request, {})
    assert ("without kernels of cublaslt" in plan.summary()) == ("cublaslt" in plan.options.exclude_backends)
    assert ("cublaslt" in plan.toolchains) != ("cublaslt" in plan.options.exclude_backends)
    session = Session(plan, paths, Progress(io.StringIO()))
    try:
        yield session
    finally:
        session.close()


@pytest.mark.parametrize(("exclude", "kept"), [("", "vendor"), ("cublaslt", "own")])
def test_a_replay_chooses_among_the_other_kernels(
    templates: Path, tuning: Path, tmp_path: Path, exclude: str, kept: str
) -> None:
    with replaying(templates, tuning, tmp_path / "cache", exclude) as session:
        evidence, database = recorded_evidence(session, session.operators["twice"].operator, TARGET)
        assert database is not None
        chosen = choose(session, evidence)
    assert [evidence.entries[c].candidate.kernel for c in chosen.selection.kept] == [kept]
    tried = {e.candidate.kernel for e in evidence.entries.values()}
    assert tried == {"plain_cuda", "own"} | ({"vendor", "composed"} if not exclude else set())
    assert set(chosen.selection.regret.values()) == {0.0}  # against the best of what is there


def test_an_operator_without_a_backend_is_as_if_it_never_had_its_kernels(templates: Path) -> None:
    whole = load_operator(templates / "twice")
    assert without_backends(whole, ("hip",)) is whole
    less = without_backends(whole, ("cublaslt",))
    assert [k.name for k in less.kernels] == ["plain", "plain_cuda", "own"]
    assert operator_digest(less) == operator_digest(whole)
    assert msgspec.json.encode(less.workload_for("cuda")) == msgspec.json.encode(whole.workload_for("cuda"))
    with pytest.raises(OptionError, match="AOT_TUNE_EXCLUDE_BACKENDS has 'nvcc'") as caught:
        load_operators([templates], (), ("nvcc",))
    assert "twice/plain_cuda" in caught.value.why
