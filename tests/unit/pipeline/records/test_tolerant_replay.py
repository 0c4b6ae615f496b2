"""Replays: what holds of a record decides in `replay-or-generic`, and the rest is told; kernels without backends."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from compiled_project import GENERIC
from nvcc_sources import MISSING

from aot_tune.bench.devices.family import policy_for
from aot_tune.bench.protocol.measurement_records import Device, Measurement, Policy
from aot_tune.compile import Object, target_by_name, toolchain_for
from aot_tune.database import make_database, operator_digest, save_database
from aot_tune.pipeline.build_library import replay_all
from aot_tune.pipeline.evidence import Evidence
from aot_tune.pipeline.records.lookup import recorded_evidence
from aot_tune.pipeline.records.record_writer import records_folder
from aot_tune.pipeline.session import Session
from aot_tune.pipeline.shipping.finish import choose
from aot_tune.plan.library_plan import Request, make_plan
from aot_tune.render import Renderer, candidate_for
from aot_tune.spec import Target
from aot_tune.spec.load_operators import load_operator, load_operators, without_backends
from aot_tune.support.errors import AotTuneError, BuildError, DatabaseError, OptionError
from aot_tune.support.progress import Progress

OPERATOR = """
from aot_tune.spec import Kernel, Operator, Parameter, Tensor, dims, problem

(N,) = dims("N")
K = Parameter("K", (1, 2))
operator = Operator(
    name="twice", dims=("N",), tensors=(Tensor("x", (N,)), Tensor("y", (N,), output=True)), flops=N,
    reference=lambda xp, call: {"y": 2 * call.x},
    workload=(problem(N=64), problem(N=128)),
    kernels=(
        Kernel("generic", "twice/generic.cpp.j2", generic=True),
        Kernel("fast", "twice/fast.cpp.j2", parameters=(K,)),
        Kernel("slow", "twice/slow.cpp.j2", parameters=(K,)),
    ),
)
"""
TARGET = target_by_name("cpu-x86-64-v2")
TIMES = {"generic": 900.0, "fast": 100.0, "slow": 200.0}
DEVICE = Device(family="cpu", name="Some CPU", slug="cpu-some", identity={"model": "Some CPU"})


class Tiny:
    """A project with a record of a device that nobody has; its objects were never made."""

    def __init__(
        self, folder: Path, operator: str = OPERATOR, device: Device = DEVICE, target: Target = TARGET
    ) -> None:
        self.device, self.target = device, target
        self.templates, self.tuning, self.cache = folder / "templates", folder / "tuning", folder / "cache"
        (self.templates / "twice").mkdir(parents=True)
        self.write("operator.py", operator)
        for i, name in enumerate(("generic", "fast", "slow")):
            self.write(f"{name}.cpp.j2", GENERIC.replace("return 0;", f"return 0 & {i};"))
        self.said = io.StringIO()

    def write(self, name: str, text: str) -> None:
        (self.templates / "twice" / name).write_text(text)

    def change(self, name: str, old: str, new: str) -> None:
        text = (self.templates / "twice" / name).read_text()
        assert old in text
        self.write(name, text.replace(old, new))

    def record(self, times: Mapping[str, float] = TIMES) -> None:
        operator, policy = load_operator(self.templates / "twice"), policy_for(self.device.family, Policy())
        compiled, measurements = [], []
        for kernel in (k for k in operator.kernels if k.name in times):
            target = toolchain_for(kernel.backend).baselines()[0] if kernel.generic else self.target
            for config in kernel.configs(target.facts):
                candidate = candidate_for(operator, kernel, config, target)
                rendered = Renderer([self.templates]).render(operator, candidate, target)
                made = Object(
                    key="", path="", digest=f"{kernel.name}{config}", symbol=rendered.symbol, source=rendered.digest,
                    device="" if self.device.family == "cpu" else kernel.name, target=target.name, status="ok",
                )  # fmt: skip
                compiled.append((rendered, made))
                ns = times[kernel.name] * (1.5 if config.get("K") == 2 else 1.0)
                measurements += [
                    Measurement(candidate=candidate.id, code=made.code, problem=p, device=self.device.digest,
                                policy=policy.digest, status="ok", screen=(ns,) * 4, error=0.1, bitwise=True)
                    for p in operator.workload_for(self.device.family)
                ]  # fmt: skip
        database = make_database(
            operator="twice", contract=operator_digest(operator), device=self.device, policy=policy, toolchains={},
            baselines={}, compiled=compiled, measurements=measurements,
        )  # fmt: skip
        save_database(self.tuning, database)

    @contextlib.contextmanager
    def session(self, mode: str, targets: str = "", **options: str) -> Iterator[Session]:
        """A build that has the record."""
        given = {"AOT_TUNE_MODE": mode, "AOT_TUNE_TARGETS": targets or self.target.name, "AOT_TUNE_CACHE": "off"}
        request = Request(
            name="ops", prefix="mine", header="mine.h", templates=(str(self.templates),),
            database=str(self.tuning) if self.tuning.is_dir() else "", options={**given, **options},
        )  # fmt: skip
        plan, paths, _ = make_plan(request, os.environ)
        self.said = io.StringIO()
        session = Session(plan, paths, Progress(self.said))
        try:
            yield session
        finally:
            session.close()

    def replay(self, mode: str = "replay-or-generic", targets: str = "") -> Evidence:
        """The evidence of a replay; what makes an operator fail is raised."""
        with self.session(mode, targets) as session:
            (found,) = replay_all(session).values()
            if session.failures:
                raise session.failures.error(1)
            return found[0] if found else Evidence(session.operators["twice"].operator, self.target, {})

    @property
    def notes(self) -> list[str]:
        return [line for line in self.said.getvalue().splitlines() if "NOTE" in line]


@pytest.fixture
def tiny(tmp_path: Path) -> Tiny:
    made = Tiny(tmp_path)
    made.record()
    return made


def kernels(evidence: Evidence) -> list[str]:
    return sorted({e.candidate.kernel for e in evidence.entries.values()})


def test_a_kernel_that_has_changed_leaves_the_choice_to_the_others(tiny: Tiny) -> None:
    tiny.change("fast.cpp.j2", "return 0", "return 0 * 1")
    with pytest.raises(DatabaseError, match="the source of fast"):
        tiny.replay("replay")
    evidence = tiny.replay()
    assert kernels(evidence) == ["generic", "slow"]
    assert all(min(row.values()) == TIMES["slow"] for row in evidence.times().values())
    (note,) = tiny.notes
    assert "NOTE twice: PARTLY TUNED for cpu-x86-64-v2: 2 recorded candidates of fast do not count" in note
    assert "is not the recorded one" in note
    assert evidence.note in note  # the report has it too


def test_a_kernel_that_is_gone_leaves_the_choice_to_the_others(tiny: Tiny) -> None:
    tiny.change("operator.py", 'Kernel("fast", "twice/fast.cpp.j2", parameters=(K,)),', "")
    with pytest.raises(DatabaseError, match="no kernel 'fast'"):
        tiny.replay("replay")
    assert kernels(tiny.replay()) == ["generic", "slow"]
    assert "of fast do not count: no kernel 'fast' for cpu-x86-64-v2" in tiny.notes[0]


def test_a_problem_that_the_record_lacks_is_told(tiny: Tiny) -> None:
    tiny.change("operator.py", "problem(N=128)", "problem(N=128), problem(N=256)")
    with pytest.raises(DatabaseError, match="1 problem is not in the database"):
        tiny.replay("replay")
    evidence = tiny.replay()
    assert set(evidence.times()) == {"N=64", "N=128"}
    (note,) = tiny.notes
    assert "PARTLY TUNED for cpu-x86-64-v2: no time that counts of 1 problem: N=256" in note


def changed(tiny: Tiny) -> None:
    tiny.change("operator.py", "flops=N,", "flops=N, tolerance=3.0,")


def stale(tiny: Tiny) -> None:
    for name in ("fast", "slow"):
        tiny.change(f"{name}.cpp.j2", "return 0", "return 0 * 1")


def other_problems(tiny: Tiny) -> None:
    tiny.change("operator.py", "problem(N=64), problem(N=128)", "problem(N=7), problem(N=9)")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            changed,
            "another version of operator 'twice': on cpu-x86-64-v2 2 problems are not in the database: N=64, N=128",
        ),
        (stale, "2 recorded candidates of slow do not count"),
        (other_problems, "no time that counts of 2 problems: N=7, N=9"),
    ],
    ids=["contract", "sources", "problems"],
)
def test_the_generic_variant_serves_where_nothing_holds(tiny: Tiny, change: Callable[[Tiny], None], told: str) -> None:
    change(tiny)
    with pytest.raises(AotTuneError):
        tiny.replay("replay")
    check_generic(tiny, tiny.replay(), told)


def test_the_generic_variant_serves_a_target_that_no_record_has(tiny: Tiny) -> None:
    evidence = tiny.replay(targets="cpu-x86-64-v3")
    check_generic(tiny, evidence, "2 problems are not in the database: N=64, N=128")


def check_generic(tiny: Tiny, evidence: Evidence, told: str) -> None:
    assert kernels(evidence) == ["generic"]
    assert not evidence.measurements
    (note,) = tiny.notes
    assert f"NOTE twice: NOT TUNED for {evidence.target.name}, the generic variant serves: " in note
    assert told in note


def test_without_any_record_the_library_is_that_of_generic_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    tiny = Tiny(tmp_path)
    with pytest.raises(BuildError, match="the database is empty"):
        tiny.replay("replay", "native")
    assert not tiny.replay(targets="native").entries
    assert "NOTE there are no records" in tiny.notes[0]
    tiny.record({**TIMES, "fast": 1e-3})
    with pytest.raises(DatabaseError, match="less than the"):
        tiny.replay()


BACKENDS = """        Kernel("plain_cuda", "twice/any.j2", backend="nvcc", generic=True),
        Kernel("own", "twice/any.j2", backend="nvcc"),
        Kernel("vendor", "twice/any.j2", backend="cublaslt"),
        Kernel("composed", "twice/any.j2", backend="nvcc", stages=("cublaslt", "added")),
"""
RECORDED = {"plain_cuda": 900.0, "own": 200.0, "vendor": 100.0, "composed": 150.0}
CARD = Device(family="cuda", name="Some card", slug="cuda-some-card", identity={"capability": 90})


def with_backends(folder: Path) -> Tiny:
    at = OPERATOR.index('        Kernel("fast"')
    text = OPERATOR[:at].replace("generic.cpp.j2", "any.j2") + BACKENDS + OPERATOR[OPERATOR.index("    ),\n)", at) :]
    made = Tiny(folder, text, CARD, target_by_name("cuda-sm_90a"))
    bodies = "".join(f'{{{{ kernel_signature("{name}") }}}} {{ return 0; }}\n' for name in ("preload", "launch"))
    made.write("any.j2", "{{ prelude() }} {{ no_workspace() }}\n" + bodies)
    return made


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_a_replay_without_a_backend_chooses_among_the_other_kernels_and_records_apart(tmp_path: Path) -> None:
    tiny, folders = with_backends(tmp_path), set()
    tiny.record(RECORDED)
    for exclude, kept in (("", "vendor"), ("cublaslt", "own")):
        cache = {"AOT_TUNE_CACHE": "rw", "AOT_TUNE_CACHE_DIR": str(tmp_path / "cache")}
        with tiny.session("replay", AOT_TUNE_EXCLUDE_BACKENDS=exclude, **cache) as session:
            evidence, _ = recorded_evidence(session, session.operators["twice"].operator, tiny.target)
            chosen = choose(session, evidence)
            folders.add(records_folder(session))
        assert [evidence.entries[c].candidate.kernel for c in chosen.selection.kept] == [kept]
        assert set(chosen.selection.regret.values()) == {0.0}  # against the best of what is there
    assert None not in folders
    assert len(folders) == 2


def test_an_operator_without_a_backend_is_as_if_it_never_had_its_kernels(tmp_path: Path) -> None:
    templates = with_backends(tmp_path).templates
    whole = load_operator(templates / "twice")
    assert without_backends(whole, ("hip",)) is whole
    less = without_backends(whole, ("cublaslt",))
    assert [k.name for k in less.kernels] == ["generic", "plain_cuda", "own"]
    assert operator_digest(less) == operator_digest(whole)
    with pytest.raises(OptionError, match="AOT_TUNE_EXCLUDE_BACKENDS has 'nvcc'") as caught:
        load_operators([templates], (), ("nvcc",))
    assert "twice/plain_cuda" in caught.value.why
