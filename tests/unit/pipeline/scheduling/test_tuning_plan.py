"""What is compiled and measured when: plan and builder with compilers and devices that only let a clock run."""

import heapq
import io
import itertools
import random
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import pytest
from small_operators import make_operator

from aot_tune.bench.protocol.measurement_records import Measurement
from aot_tune.compile import Object, Variant, target_by_name
from aot_tune.expr.integer_expressions import dtype_index
from aot_tune.pipeline.build_time import TuningTurn, expected_seconds, task_of
from aot_tune.pipeline.evidence import Evidence, Proposal
from aot_tune.pipeline.measuring.builder import Arrived, CompileBatch, CompilersEnded, Event, Job, Measured, WorkBuilder
from aot_tune.pipeline.measuring.measure import finalists, overlooked
from aot_tune.pipeline.scheduling.tuning_plan import Constraints, TuningPlan
from aot_tune.render import Candidate, Rendered
from aot_tune.search.budget import ON_CPU, ON_GPU, Budget, Durations
from aot_tune.spec import Kernel, Operator, Parameter, dims, problem
from aot_tune.support.errors import BuildError, WorkerError
from aot_tune.support.progress import Progress

(N,) = dims("N")
CPU, GPU = target_by_name("cpu-x86-64-v3"), target_by_name("cuda-sm_90a")
TIMES = Callable[[str, int], float | None]
"""ns by UNROLL (empty for the generic variant) and N; None: it fails."""


def operator(
    name: str = "scale", problems: int = 3, weights: Mapping[str, float] | None = None, *, dtypes: Sequence[str] = ()
) -> Operator:
    """Each problem is in all `dtypes`, if any. A config in one of them follows the same one in that before it."""
    sizes = [{"N": 1 << (20 + i)} for i in range(problems)]
    workload = (
        [problem(**n, dtypes={"T": t}) for t in dtypes for n in sizes] if dtypes else [problem(**n) for n in sizes]
    )
    follows = dict(zip(dtypes[1:], dtypes, strict=False))
    return make_operator(
        Kernel("rows", "r.j2", parameters=(Parameter("UNROLL", tuple(range(64))),), follows=follows),
        name=name,
        extents="N",
        dtypes={"T": tuple(dtypes)} if dtypes else {},
        workload=tuple(workload),
        weights=weights or {},
    )


def variants_of(op: Operator, target: Any, count: int) -> list[Variant]:
    """Its generic variants last, as a build has them."""
    configs: list[tuple[str, dict[str, Any]]] = [*(("rows", {"UNROLL": i}) for i in range(count)), ("generic", {})]
    made = []
    for kernel, config in configs:
        for dtypes in op.dtype_choices(op.kernel(kernel)):
            named = {"operator": op.name, "kernel": kernel, "backend": "cxx", "target": target.name}
            candidate = Candidate(**named, config=config, dtypes=dtypes, generic=kernel == "generic")
            serves = tuple(dtype_index(v) == op.dtypes[v].index(d) for v, d in dtypes.items())
            rendered = Rendered(candidate=candidate, source="", digest="", symbol="s", lines=[], requires=serves)
            made.append(Variant(rendered=rendered))
    return made


def unroll(variant: Variant) -> str:
    return str(variant.candidate.config.get("UNROLL", ""))


class Machine:
    """Compilers and devices, see `Runner`. Nothing takes time but by its clock.

    `log` has what happened: the second, what, and of which problem and candidates. `fails` are devices that lose their
    workers at their first job.
    """

    link_seconds = 0.3

    def __init__(
        self,
        times: TIMES,
        *,
        devices: Iterable[Hashable] = ("a",),
        compilers: int = 2,
        compile_seconds: float = 2.0,
        screen_seconds: float = 0.5,
        race_seconds: float = 1.0,
        fails: Iterable[Hashable] = (),
    ) -> None:
        self.now, self.devices, self.times = 0.0, list(devices), times
        self.compilers, self.seconds = compilers, (compile_seconds, screen_seconds, race_seconds)
        self.log: list[tuple[float, str, str, tuple[str, ...]]] = []
        self.fails, self.linked, self.known = set(fails), set[str](), dict[tuple[str, int], float]()
        self.lost: list[Hashable] = []
        self.error: BaseException | None = None
        self.abandoned = False
        self.busy: dict[Hashable, Job] = {}
        self.both = 0.0
        self._events: list[tuple[float, int, Callable[[], Event | None]]] = []
        self._numbers = itertools.count()
        self._arriving: set[int] | None = None
        self._into: Sequence[Evidence] = ()

    def clock(self) -> float:
        return self.now

    def attach(self, turn: TuningTurn) -> None:
        self._turn = turn

    # Runner

    def compile(self, batch: CompileBatch) -> None:
        self._into, self._arriving = batch.into, set()
        self._note("compile", batch.what, batch.variants)
        self._since = self.now
        for i, variant in enumerate(batch.variants):
            self._arriving.add(self._at((i // self.compilers + 1) * self.seconds[0], partial(self._arrives, variant)))
        ends = -(-len(batch.variants) // self.compilers) * self.seconds[0] + bool(batch.linked) * self.link_seconds
        self._arriving.add(self._at(ends, partial(self._ended, {e.id for e in batch.linked})))

    def _arrives(self, variant: Variant) -> Event:
        works = self.times(unroll(variant), 0) is not None
        made = Object(status="ok" if works else "compile-failed", digest=f"code {variant.id}" * works)
        for evidence in self._into:
            evidence.has_become(variant.id, made)
        self.linked.add(variant.id)
        owner = next(e for e in self._into if variant.id in e.variants)
        self._turn.durations.compiled(expected_seconds(owner.operator, variant), self.now - self._since)
        self._since = self.now
        return Arrived(owner.variants[variant.id])

    def _ended(self, linked: Collection[str] = ()) -> Event:
        self._arriving = None
        self.linked.update(linked)
        return CompilersEnded(self.error)

    def end_compiles(self) -> None:
        if self._arriving is not None:
            self._events = [e for e in self._events if e[1] not in (self._arriving or ())]
            heapq.heapify(self._events)
            self._arriving = {self._at(0.0, self._ended)}

    def measure(self, device: Hashable, job: Job) -> None:
        self.busy[device] = job
        name = "" if job.problem is None else f"{job.evidence.operator.name} {job.problem.id}"  # type: ignore[union-attr]
        self._note(job.what, name, job.variants)
        if device in self.fails:
            self._at(0.1, partial(self._fails, device, job))
            return
        screens = {"screen": len(job.variants), "race": 0, "verify": 1}[job.what]
        seconds = screens * self.seconds[1] + (job.what == "race") * self.seconds[2]
        self._at(seconds, partial(self._does, device, job, seconds))

    def _fails(self, device: Hashable, job: Job) -> Event:
        del self.busy[device]
        return Measured(device, job, WorkerError("its workers are gone"))

    def _does(self, device: Hashable, job: Job, seconds: float) -> Event | None:
        if device not in self.busy:
            return None  # interrupted
        del self.busy[device]
        evidence, on = job.evidence, job.problem
        if evidence is None or on is None:
            return Measured(device, job)
        task = task_of(evidence.operator, on)
        entrants = finalists(evidence, on) if job.what == "race" else ()
        for variant in job.variants if job.what == "screen" else entrants:
            measurement = self.screen(variant, on)
            if job.what == "screen":
                evidence.add_screen(measurement)
                self._turn.screened(task, seconds / len(job.variants), 0.0, "")
            else:
                ns = measurement.ns or 1.0
                evidence.add(msgspec.structs.replace(measurement, final=(ns,) * 5, race="r"))
        if job.what == "race":
            evidence.race_done(on.id)
            self._turn.raced(task, seconds, 0.0)
        return Measured(device, job)

    def screen(self, variant: Variant, on: Any) -> Measurement:
        ns = self.times(unroll(variant), on.dims["N"])
        measured: dict[str, Any] = {"status": "ok" if ns else "crashed", "screen": (ns,) * 2 if ns else ()}
        return Measurement(
            candidate=variant.id, code=f"code {variant.id}", problem=on, device="d", policy="p", **measured
        )

    def interrupt(self) -> None:
        for device, job in list(self.busy.items()):
            del self.busy[device]
            self._at(0.0, partial(Measured, device, job))

    def lose(self, device: Hashable, error: WorkerError) -> None:
        self.devices.remove(device)
        self.lost.append(device)

    def abandon(self) -> None:
        self.abandoned = True

    def wait(self, seconds: float | None) -> Event | None:
        limit = float("inf") if seconds is None else self.now + seconds
        while self._events and self._events[0][0] <= limit:
            at, _, happens = heapq.heappop(self._events)
            if self._arriving is not None and self.busy:
                self.both += at - self.now
            self.now = max(self.now, at)
            if (event := happens()) is not None:
                return event
        assert seconds is not None, "it waits for nothing"
        self.now = limit
        return None

    def _at(self, seconds: float, happens: Callable[[], Event | None]) -> int:
        number = next(self._numbers)
        heapq.heappush(self._events, (self.now + seconds, number, happens))
        return number

    def _note(self, what: str, name: str, variants: Iterable[Variant]) -> None:
        self.log.append((self.now, what, name, tuple(unroll(v) for v in variants)))

    # Known

    def recall(self, evidence: Evidence, on: Any, variant: Variant) -> bool:
        return False

    def knows_race(self, op: Operator, on: Any, entrants: Sequence[Variant]) -> bool:
        return False

    def is_linked(self, variant: Variant) -> bool:
        return variant.id in self.linked

    def did(self, *what: str) -> list[tuple[str, str, tuple[str, ...]]]:
        return [entry[1:] for entry in self.log if entry[1] in what]


def tune(
    machine: Machine,
    operators: Sequence[Operator],
    *,
    quiet: bool = True,
    count: int = 6,
    seconds: float | None = None,
    known: Iterable[str] = (),
    never: Callable[[Variant], bool] = lambda _variant: False,
) -> list[Evidence]:
    """Tune operators on a machine; what is known then. An earlier build has screened what is `known`, by UNROLL.

    Nothing `never` wanted is compiled."""
    target = CPU if quiet else GPU
    evidences = []
    for op in operators:
        evidence = Evidence(op, target, {})
        evidence.try_too(map(Proposal, variants_of(op, target, count)))
        for variant in [e for e in evidence.variants.values() if unroll(e) in known]:
            evidence.has_become(variant.id, Object(status="ok", digest=f"code {variant.id}"))
            for on in evidence.workload:
                evidence.add_screen(machine.screen(evidence.variants[variant.id], on))
        evidences.append(evidence)
    budget = Budget(seconds, machine.clock)
    turn = TuningTurn(Progress(io.StringIO(), machine.clock), Durations(ON_CPU if quiet else ON_GPU), budget)
    machine.attach(turn)
    limits = Constraints(quiet, machine.compilers, lambda: len(machine.devices))
    plan = TuningPlan(evidences, turn, machine, limits)
    builder = WorkBuilder(plan, machine, budget, machine.clock, quiet)
    variants = [e for evidence in evidences for e in evidence.variants.values() if e.object is None and not never(e)]
    turn.expect(evidences, variants)
    plan.add(variants)
    builder.run()
    plan.least = 0.0
    builder.run()
    return evidences


def usual(candidate: str, n: int) -> float:
    """The generic variant takes ten times as long; of the others, the last is the fastest."""
    return n * 10.0 if not candidate else n * (1.0 + 1.0 / (1 + int(candidate)))


def screened(evidence: Evidence) -> dict[str, set[str]]:
    """By problem, what was screened."""
    return {p: {unroll(evidence.variants[c]) for c in row} for p, row in evidence.measurements.items()}


HALVES = ("bf16", "f16")
ALL = {str(i) for i in range(6)} | {""}


def test_on_a_cpu_all_is_compiled_then_each_problem_is_screened_and_raced() -> None:
    machine = Machine(usual)
    (evidence,) = tune(machine, [operator()])
    everything = ("0", "1", "2", "3", "4", "5", "")
    assert machine.did("compile") == [("compile", "cpu-x86-64-v3", everything)]
    problems = [p.id for p in evidence.workload]
    assert machine.did("screen", "race") == [
        done
        for p in problems
        for done in (("screen", f"scale {p}", everything), ("race", f"scale {p}", ("5", "4", "3", "2")))
    ]
    assert machine.both == 0.0


def test_beside_compilers_the_same_is_measured_and_no_race_runs_beside_them() -> None:
    machine = Machine(usual)
    (evidence,) = tune(machine, [operator()], quiet=False)
    assert screened(evidence) == {p.id: ALL for p in evidence.workload}
    assert machine.both > 0.0
    compiled = max(at for at, what, *_ in machine.log if what == "compile") + 4 * 2.0
    races = [entry for entry in machine.log if entry[1] == "race"]
    assert [name for _, _, name, _ in races] == [f"scale {p.id}" for p in reversed(evidence.workload)]  # longest first
    assert all(at >= compiled for at, *_ in races)


@pytest.mark.parametrize("quiet", [True, False])
def test_the_same_input_gives_the_same_order(quiet: bool) -> None:
    logs = []
    for _ in range(2):
        machine = Machine(usual, devices=("a",) if quiet else ("a", "b"))
        tune(machine, [operator(), operator("other", 2)], quiet=quiet, seconds=60.0)
        logs.append(machine.log)
    assert logs[0] == logs[1]


@pytest.mark.parametrize("quiet", [True, False])
@pytest.mark.parametrize("seconds", [12.0, 30.0, 60.0, 200.0])
def test_a_budget_is_used_where_there_is_work(quiet: bool, seconds: float) -> None:
    machine = Machine(usual, compile_seconds=4.0)
    tune(machine, [operator(problems=8), operator("other", 8)], quiet=quiet, count=60, seconds=seconds)
    assert 0.9 * seconds <= machine.now <= 1.01 * seconds, machine.log[-5:]


@pytest.mark.parametrize("quiet", [True, False])
def test_within_a_budget_generic_variants_come_first(quiet: bool) -> None:
    machine = Machine(usual, compile_seconds=0.5)
    tune(machine, [operator(), operator("other")], quiet=quiet, count=40, seconds=60.0)
    first = machine.did("screen")[:2]
    assert sorted(first) == [("screen", "other N=1048576", ("",)), ("screen", "scale N=1048576", ("",))]


@pytest.mark.parametrize("devices", ["a", "ab"])
@pytest.mark.parametrize("seconds", [20.0, 60.0, 100.0])
def test_what_was_screened_beside_compilers_is_raced_before_a_budget_ends(seconds: float, devices: str) -> None:
    """However much is left to be compiled and screened."""
    machine = Machine(usual, devices=devices, compile_seconds=0.5)
    operators = [operator(), operator("other"), operator("third")]
    for evidence in tune(machine, operators, quiet=False, count=60, seconds=seconds):
        raced = {p for p, row in evidence.measurements.items() if any(m.final for m in row.values())}
        tried = {p for p, row in evidence.measurements.items() if len(row) > 4}  # not in the last second alone
        assert raced >= tried
    assert 0.9 * seconds <= machine.now <= 1.01 * seconds


def test_what_an_earlier_build_screened_is_linked_and_raced_before_a_budget_ends() -> None:
    """Its objects come from the cache, and nobody linked them."""
    machine = Machine(usual, compile_seconds=4.0)
    (evidence,) = tune(machine, [operator()], quiet=False, count=20, seconds=20.0, known=("0", "1", "2", ""))
    assert machine.linked >= {e.id for e in evidence.variants.values() if unroll(e) in ("1", "2")}
    assert all(any(m.final for m in row.values()) for row in evidence.measurements.values())
    assert machine.now >= 0.9 * 20.0


def test_nothing_races_beside_a_linker() -> None:
    machine = Machine(usual, devices="ab", compile_seconds=4.0)
    tune(machine, [operator()], quiet=False, count=4, known=("0", "1", "2", "3", ""))
    assert [what for _, what, *_ in machine.log] == ["compile", "race", "race", "race"]
    links, *races = (at for at, *_ in machine.log)
    assert min(races) >= links + machine.link_seconds


def test_what_is_ready_is_screened_on_all_problems_before_what_arrives_meanwhile() -> None:
    machine = Machine(usual, compilers=1, compile_seconds=2.0, screen_seconds=1.1)
    (evidence,) = tune(machine, [operator(problems=4)], quiet=False)
    problems = [f"scale {p.id}" for p in evidence.workload]
    screens = machine.did("screen")
    assert screens[:8] == [("screen", p, tried) for tried in (("0",), ("1", "2")) for p in problems]


def test_within_a_budget_operators_take_turns() -> None:
    machine = Machine(usual, compile_seconds=0.01)
    evidences = tune(machine, [operator(problems=4), operator("other", 4)], quiet=False, count=20, seconds=45.0)
    tried = [sum(len(row) > 4 for row in e.measurements.values()) for e in evidences]
    assert abs(tried[0] - tried[1]) <= 1
    assert max(tried) < 4


@pytest.mark.parametrize("quiet", [True, False])
def test_within_a_budget_what_weighs_more_comes_first(quiet: bool) -> None:
    last = "N=4194304"
    machine = Machine(usual, screen_seconds=2.0)
    tune(machine, [operator(weights={last: 50.0})], quiet=quiet, seconds=14.0)
    tuned = [name for _, name, tried in machine.did("screen") if tried != ("",)]
    assert tuned[0] == f"scale {last}"


def test_a_budget_that_is_over_begins_nothing() -> None:
    machine = Machine(usual)
    tune(machine, [operator()], seconds=0.0)
    assert machine.log == []


@pytest.mark.parametrize(("devices", "factor"), [("ab", 1.9), ("abcd", 3.4)])
def test_several_devices_share_the_work(devices: str, factor: float) -> None:
    operators = [operator(problems=16), operator("other", 16)]
    took = []
    for names in ("a", devices):
        machine = Machine(usual, devices=names, compile_seconds=0.01, compilers=8)
        evidences = tune(machine, operators, quiet=False)
        assert [screened(e) for e in evidences] == [{p.id: ALL for p in e.workload} for e in evidences]
        took.append(machine.now)
    assert took[0] / took[1] >= factor


@pytest.mark.parametrize("devices", ["a", "ab"])
def test_what_follows_a_leader_is_compiled_once_the_leader_was_among_the_best(devices: str) -> None:
    machine = Machine(usual, devices=devices)
    (evidence,) = tune(machine, [operator(dtypes=HALVES)], quiet=False)
    leaders, followers = (tried for _, what, tried in machine.did("compile") if what != "finalists")
    assert sorted(leaders) == sorted(["0", "1", "2", "3", "4", "5", "", ""])
    assert followers == ("4", "5")  # the next best took 7 % longer
    first = next(at for at, what, _, tried in machine.log if what == "compile" and tried == followers)
    assert not any(what == "race" and at < first for at, what, *_ in machine.log)
    assert {p: tried for p, tried in screened(evidence).items() if "f16" in p and "bf16" not in p} == {
        p.id: {"4", "5", ""} for p in evidence.workload if p.dtypes
    }


def test_a_leader_that_is_never_compiled_keeps_no_problem_from_its_race() -> None:
    """A record lacks slow leaders, and no problem of theirs is left to measure. Their followers are left out too."""
    machine = Machine(usual)
    (evidence,) = tune(
        machine,
        [operator(dtypes=HALVES)],
        quiet=False,
        never=lambda v: unroll(v) == "0" and v.candidate.dtypes == {"T": "bf16"},
    )
    assert {name for _, name, _ in machine.did("race")} == {f"scale {p.id}" for p in evidence.workload}


def test_where_all_that_raced_are_out_the_others_race() -> None:
    machine = Machine(lambda c, n: n * 3.0 if not c else n * (1.0 if c in "45" else 2.0))
    (evidence,) = tune(machine, [operator(problems=1)], quiet=False)
    (on,) = evidence.workload
    best = {c for c, v in evidence.variants.items() if unroll(v) in ("4", "5")}
    assert overlooked(evidence, on) == set()
    evidence.add(*(msgspec.structs.replace(evidence.on(on)[c], status="wrong-result", final=None) for c in best))
    assert overlooked(evidence, on) == set(evidence.variants) - best


def test_what_is_passed_over_may_let_a_follower_be_compiled_before_any_race() -> None:
    """The last that is ready in f16 is passed over where it was slow in bf16. Then all is known of what f32 follows."""
    small = 1 << 20  # the first config is best for what is larger, the second for this
    machine = Machine(
        lambda c, n: 9.0 * n if not c else (1.0 + ((c == "0") == (n <= small))) * n, compilers=1, compile_seconds=4.0
    )
    tune(machine, [operator(problems=2, dtypes=(*HALVES, "f32"))], quiet=False, count=2)
    whats = [what for _, what, *_ in machine.log]
    assert whats.count("compile") == 3
    assert "compile" not in whats[whats.index("race") :]


def test_within_a_budget_generic_variants_decide_nothing() -> None:
    """They are screened once first, and wait to the end on all other problems."""
    machine = Machine(usual, compile_seconds=1.0)
    (evidence,) = tune(machine, [operator(dtypes=HALVES)], quiet=False, seconds=100.0)
    screens = [tried for *_, tried in machine.did("screen")]
    assert screens[:2] == screens[-4:-2] == screens[-2:] == [("",), ("",)]
    assert sum("" in tried for tried in screens) == 6
    assert screened(evidence)[evidence.workload[-1].id] == {"4", "5", ""}


def test_a_device_that_has_nothing_to_screen_races_early() -> None:
    """On a problem of which all is screened, while another device still screens."""
    machine = Machine(usual, devices="ab", compile_seconds=0.01, compilers=8, race_seconds=0.2)
    tune(machine, [operator(problems=3)], quiet=False)
    screens = [at + 0.5 * len(tried) for at, what, _, tried in machine.log if what == "screen"]
    races = [at for at, what, *_ in machine.log if what == "race"]
    assert len(races) == 3
    assert min(races) < max(screens)


def test_others_do_the_work_of_a_device_that_is_lost() -> None:
    machine = Machine(usual, devices="abc", fails="b")
    (evidence,) = tune(machine, [operator(problems=6)], quiet=False)
    assert machine.lost == ["b"]
    assert screened(evidence) == {p.id: ALL for p in evidence.workload}


def test_what_a_lost_device_was_to_verify_is_the_same_job_on_another() -> None:
    machine, evidence = Machine(usual), Evidence(operator(dtypes=(*HALVES, "f32")), GPU, {})
    evidence.leave_out()  # then nothing is measured
    evidence.try_too(map(Proposal, variants_of(evidence.operator, GPU, 0)))
    for variant in list(evidence.variants):
        evidence.has_become(variant, Object(status="ok", digest=variant))
    turn = TuningTurn(Progress(io.StringIO()), Durations(ON_GPU), Budget(None))
    plan = TuningPlan([evidence], turn, machine, Constraints(quiet=False, devices=lambda: 2))
    plan.add(())
    first, second = plan.job("a"), plan.job("b")
    assert first is not None
    assert second is not None
    plan.lost("a", first)
    plan.measured(second)
    again, last = plan.job("b"), plan.job("c")
    assert again is not None
    assert last is not None
    assert (again.number, again.variants) == (first.number, first.variants)
    assert len({first.number, second.number, last.number}) == 3
    assert plan.job("b") is None


def test_what_fails_on_two_devices_or_on_the_last_ends_the_tuning() -> None:
    for devices in ("a", "ab"):
        machine = Machine(usual, devices=devices, fails=devices)
        with pytest.raises(WorkerError):
            tune(machine, [operator(problems=1)], quiet=False)
        assert machine.abandoned


@pytest.mark.parametrize("quiet", [True, False])
def test_an_error_of_the_compilers_ends_the_tuning(quiet: bool) -> None:
    machine = Machine(usual)
    machine.error = BuildError("no compiler")
    with pytest.raises(BuildError):
        tune(machine, [operator()], quiet=quiet)
    assert machine.abandoned


@pytest.mark.parametrize("quiet", [True, False])
def test_a_bad_candidate_costs_only_itself(quiet: bool) -> None:
    """One does not compile, one crashes."""
    machine = Machine(lambda c, n: None if c == "5" or (c == "4" and n) else usual(c, n))
    (evidence,) = tune(machine, [operator()], quiet=quiet)
    assert screened(evidence) == {p.id: ALL - {"5"} for p in evidence.workload}
    races = machine.did("race")
    assert len(races) == 3
    assert all(entrants == ("3", "2", "1") for *_, entrants in races)


class Unreliable(Machine):
    """Its devices lose their workers now and then, except the last. No problem is on two devices at the same time."""

    random = random.Random(0)
    loses = 0.0

    def measure(self, device: Hashable, job: Job) -> None:
        assert device not in self.busy
        assert all(other.number != job.number for other in self.busy.values())
        if len(self.devices) > 1 and self.random.random() < self.loses:
            self.fails.add(device)
        super().measure(device, job)


@pytest.mark.parametrize("seed", range(60))
def test_whatever_happens_it_ends_and_without_a_budget_all_is_done(seed: int) -> None:
    drawn = random.Random(seed)
    draw, quiet, seconds = drawn.choice, drawn.random() < 0.4, drawn.choice([None, None, 5.0, 60.0])
    factors: dict[tuple[str, int], float | None] = {}

    def times(candidate: str, n: int) -> float | None:
        if not candidate:
            return 9.0 * n
        if (candidate, n) not in factors:
            factors[candidate, n] = None if drawn.random() < 0.1 else n * (1 + drawn.random() * draw([0.05, 1, 3]))
        return factors[candidate, n]

    machine = Unreliable(
        times,
        devices="a" if quiet else "abcd"[: draw([1, 2, 4])],
        compilers=draw([1, 8]),
        compile_seconds=draw([0.01, 3.0]),
        screen_seconds=draw([0.05, 2.0]),
        race_seconds=draw([0.1, 5.0]),
    )
    machine.random, machine.loses, count = drawn, draw([0.0, 0.1]), draw([1, 8, 20])
    operators = [operator(name, drawn.randint(1, 5), dtypes=draw([(), HALVES])) for name in ("scale", "other")]
    known = [str(i) for i in range(count) if drawn.random() < 0.3] + draw([[], [""]])
    try:
        evidences = tune(machine, operators, quiet=quiet, count=count, seconds=seconds, known=known)
    except WorkerError:
        assert machine.lost
        return
    for evidence, on in ((e, p) for e in evidences if seconds is None for p in e.workload):
        assert any(m.final for m in evidence.on(on).values() if m.status == "ok")
        assert finalists(evidence, on) == []
        assert not any(evidence.lacks(e) for e in evidence.variants.values() if e.code)
