"""What a build makes of records: which variants it keeps, what it says of what does not hold, and what it refuses."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from bundled import OPERATORS
from compiled_project import GENERIC, planned
from places import ROOT

from aot_tune.bench.devices.family import family
from aot_tune.bench.protocol.measurement_records import Device, Measurement, Policy
from aot_tune.compile import Object, Variant, target_by_name
from aot_tune.database import CandidateRecord, OperatorDatabase, load_database, operator_digest, save_database
from aot_tune.pipeline.build_library import build
from aot_tune.pipeline.records.lookup import evidence_as_recorded
from aot_tune.render import Renderer, candidate_for
from aot_tune.spec.load_operators import load_operator
from aot_tune.support.errors import AotTuneError

pytestmark = pytest.mark.slow

OPERATOR = """
from aot_tune.spec import Kernel, Operator, Parameter, Tensor, dims, problem

(N,) = dims("N")
K = Parameter("K", (1, 2))
operator = Operator(
    name="NAME", dims=("N",), tensors=(Tensor("x", (N,)), Tensor("y", (N,), output=True)), flops=N,
    reference=lambda xp, call: {"y": 2 * call.x},
    workload=(problem(N=64), problem(N=128)),
    kernels=(
        Kernel("generic", "NAME/generic.cpp.j2", generic=True),
        Kernel("fast", "NAME/fast.cpp.j2", parameters=(K,)),
        Kernel("slow", "NAME/slow.cpp.j2", parameters=(K,)),
        Kernel("vendor", "NAME/vendor.cpp.j2", algorithms=lambda _: None),
    ),
)
"""
TARGET = target_by_name("cpu-x86-64-v2")
TIMES = {"generic": 900.0, "fast": 100.0, "slow": 200.0, "vendor": 400.0}
SOME = Device(family="cpu", name="Some CPU", slug="cpu-some", identity={"model": "Some CPU"})
OTHER = Device(family="cpu", name="Other CPU", slug="cpu-other", identity={"model": "Other CPU"})

Change = tuple[str, str, str]
FAST = ("fast.cpp.j2", "return 0", "return 0 * 1")
SLOW = ("slow.cpp.j2", "return 0", "return 0 * 1")
VENDOR = ("operator.py", '        Kernel("vendor", "stale/vendor.cpp.j2", algorithms=lambda _: None),\n', "")
GONE = ("operator.py", '        Kernel("fast", "gone/fast.cpp.j2", parameters=(K,)),\n', "")
CHANGED: dict[str, tuple[tuple[Change, ...], set[str], str, str]] = {
    "same": ((), {"fast"}, "", ""),
    "source": (
        (FAST,),
        {"slow"},
        "PARTLY TUNED for cpu-x86-64-v2: 2 recorded candidates of fast do not count",
        "the source of fast",
    ),
    "gone": ((GONE,), {"slow"}, "of fast do not count: no kernel 'fast' for cpu-x86-64-v2", "no kernel 'fast'"),
    "lacking": (
        (("operator.py", "problem(N=128)", "problem(N=128), problem(N=256)"),),
        {"fast"},
        "PARTLY TUNED for cpu-x86-64-v2: no time that counts of 1 problem: N=256",
        "1 problem is not in the database",
    ),
    "contract": (
        (("operator.py", "flops=N,", "flops=N, tolerance=3.0,"),),
        set(),
        "another version of operator 'contract': on cpu-x86-64-v2 2 problems are not in the database: N=64, N=128",
        "another version of operator 'contract'",
    ),
    "stale": ((FAST, SLOW, VENDOR), set(), "2 recorded candidates of slow do not count", "the source of fast"),
    "problems": (
        (("operator.py", "problem(N=64), problem(N=128)", "problem(N=7), problem(N=9)"),),
        set(),
        "no time that counts of 2 problems: N=7, N=9",
        "2 problems are not in the database",
    ),
}
"""By operator: what changed since it was recorded, the kernels that are kept beside the generic one, the note of a
build that tolerates it, and what a replay says."""

DECIDED: dict[str, tuple[dict[str, float], dict[str, str], str]] = {
    "failed": ({}, {"fast": "wrong-result"}, "slow"),
    "crashed": ({}, {"fast": "crashed", "slow": "oom"}, "vendor"),
    "tied": ({"vendor": 100.0, "fast": 99.5}, {}, "vendor"),
    "beaten": ({"vendor": 100.0, "fast": 98.0}, {}, "fast"),
}
"""By operator: times in its record, statuses on one of both problems, and the kernel that is kept."""


class Recorded:
    """A project whose operators have records of devices that nobody has; their objects were never made."""

    def __init__(self, folder: Path, *names: str) -> None:
        self.folder, self.templates, self.tuning = folder, folder / "templates", folder / "tuning"
        self.builds = 0
        for name in names:
            (self.templates / name).mkdir(parents=True)
            self.write(name, "operator.py", OPERATOR.replace("NAME", name))
            for number, kernel in enumerate(TIMES):
                self.write(name, f"{kernel}.cpp.j2", GENERIC.replace("return 0;", f"return 0 & {number};"))

    def write(self, name: str, file: str, text: str) -> None:
        (self.templates / name / file).write_text(text)

    def change(self, name: str, *changes: Change) -> None:
        for file, old, new in changes:
            text = (self.templates / name / file).read_text()
            assert old in text
            self.write(name, file, text.replace(old, new))

    def record(
        self,
        name: str,
        times: Mapping[str, float] | None = None,
        failed: Mapping[str, str] | None = None,
        device: Device = SOME,
    ) -> None:
        """All candidates raced on both problems; those of the kernels that failed did so on the second one."""
        operator, policy = load_operator(self.templates / name), family("cpu").policy(Policy())
        compiled, measurements = [], []
        for kernel in operator.kernels:
            target = target_by_name("cpu-x86-64") if kernel.generic else TARGET
            for config in kernel.configs(target.facts):
                candidate = candidate_for(operator, kernel, config, target)
                rendered = Renderer([self.templates]).render(operator, candidate, target)
                made = Object(
                    key="", path="", digest=f"{kernel.name}{config}", symbol=rendered.symbol, source=rendered.digest,
                    device="", target=target.name, status="ok",
                )  # fmt: skip
                compiled.append(Variant(rendered=rendered, object=made))
                ns = {**TIMES, **(times or {})}[kernel.name] * (1.5 if config.get("K") == 2 else 1.0)
                for number, where in enumerate(operator.workload_for("cpu")):
                    status = (failed or {}).get(kernel.name, "ok") if number else "ok"
                    told: dict[str, Any] = {"reason": "it is off"}
                    if status == "ok":
                        told = {"screen": (ns,) * 4, "final": (ns,) * 7, "race": "r", "error": 0.1, "bitwise": True}
                    measurements.append(
                        Measurement(candidate=candidate.id, code=made.code, problem=where, device=device.digest,
                                    policy=policy.digest, status=status, **told)
                    )  # fmt: skip
        database = OperatorDatabase(
            operator=name, contract=operator_digest(operator), device=device, policy=msgspec.to_builtins(policy),
            policy_digest=policy.digest, toolchains={}, baselines={}, problems=(),
            candidates=tuple(map(CandidateRecord.of, compiled)), measurements=tuple(measurements),
        )  # fmt: skip
        save_database(self.tuning, database)

    def build(self, mode: str, *names: str, targets: str = TARGET.name, **options: str) -> dict[str, set[str]]:
        """The kernels of a build's variants beside the generic ones, by operator."""
        self.builds += 1
        options = {"AOT_TUNE_MODE": mode, "AOT_TUNE_TARGETS": targets, **options}
        database = str(self.tuning) if self.tuning.is_dir() else ""
        folder = self.folder / f"build-{self.builds}"
        planned(self.templates, folder, operators=names, database=database, **options)
        build(folder)
        manifest = msgspec.json.decode((folder / "manifest.json").read_bytes())
        return {o["name"]: {v["kernel"] for v in o["variants"]} - {"generic"} for o in manifest["operators"]}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    """Operators that have changed since, or have not."""
    made = Recorded(tmp_path_factory.mktemp("recorded"), *CHANGED, *DECIDED)
    for name, (changes, *_) in CHANGED.items():
        made.record(name)
        made.change(name, *changes)
    for name, (times, failed, _) in DECIDED.items():
        made.record(name, times, failed)
    return made


def test_what_holds_of_a_record_decides_and_the_rest_is_told(
    recorded: Recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    """A failure anywhere keeps a candidate out everywhere; a vendor's wins unless beaten by more than the noise."""
    wanted = {name: kept for name, (_, kept, *_) in CHANGED.items()}
    wanted |= {name: {kept} for name, (*_, kept) in DECIDED.items()}
    assert recorded.build("replay-or-generic") == wanted
    said = capsys.readouterr().out.splitlines()
    for name, (_, kept, note, _) in CHANGED.items():
        lines = [line for line in said if f"NOTE {name}: " in line]
        assert len(lines) == bool(note), name
        assert all(note in line for line in lines), lines
        assert kept or f"NOT TUNED for {TARGET.name}, the generic variant serves: " in lines[0]


def test_a_replay_refuses_what_does_not_hold_of_all_operators_at_once(recorded: Recorded) -> None:
    with pytest.raises(AotTuneError) as caught:
        recorded.build("replay")
    said = str(caught.value)
    for name, (changes, _, _, why) in CHANGED.items():
        assert (f"operator '{name}'" in said or f"{name}: " in said) == bool(changes), name
        assert why in said


def test_the_device_that_is_named_decides_and_else_the_first(recorded: Recorded) -> None:
    recorded.record("same", {"fast": 300.0}, device=OTHER)
    assert recorded.build("replay", "same") == {"same": {"slow"}}  # the first by its folder's name
    assert recorded.build("replay", "same", AOT_TUNE_DEVICE="SOME cpu") == {"same": {"fast"}}
    with pytest.raises(AotTuneError, match=r"has 'Som CPU'(.|\n)*did you mean 'Some CPU'"):
        recorded.build("replay", "same", AOT_TUNE_DEVICE="Som CPU")


def test_a_target_without_a_record_and_a_library_without_any_have_the_generic_variant(
    recorded: Recorded, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert recorded.build("replay-or-generic", "failed", targets="cpu-x86-64-v3") == {"failed": set()}
    assert "2 problems are not in the database: N=64, N=128" in capsys.readouterr().out
    bare = Recorded(tmp_path, "bare")
    with pytest.raises(AotTuneError, match="the database is empty"):
        bare.build("replay", targets="native")
    assert bare.build("replay-or-generic", targets="native") == {"bare": set()}
    assert "NOTE there are no records" in capsys.readouterr().out
    bare.record("bare", {"fast": 1e-3})
    with pytest.raises(AotTuneError, match="less than the"):
        bare.build("replay-or-generic")


def test_a_survey_decides_for_targets_whose_tuned_variants_it_timed() -> None:
    """Generic variants are those of all targets. For older CPUs nothing else was surveyed."""
    (path,) = (ROOT / "tuning").glob("cpu-*/softmax.jsonl")
    database = load_database(path)
    tuned = {c.id: c.candidate.target for c in database.candidates if not c.candidate.generic}
    surveyed = {tuned[c] for shape in database.survey for c in shape.ns if c in tuned}
    evidence = {t: evidence_as_recorded(OPERATORS["softmax"], target_by_name(t), database) for t in tuned.values()}
    assert {t for t, e in evidence.items() if e.surveyed.times} == surveyed
    assert len(evidence) > len(surveyed) > 0
