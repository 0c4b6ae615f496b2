"""Everything that a build holds open: operators, toolchains, caches, the store and progress."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import msgspec

from aot_tune.bench.devices.family import family
from aot_tune.bench.host.findings import Checks
from aot_tune.bench.protocol.measurement_records import BUSY, Device, Policy, Seen
from aot_tune.compile import (
    Batch,
    CompileProgress,
    Object,
    ObjectCache,
    Variant,
    compile_batches,
    families_of,
    native_targets,
    parallel_compiles,
    target_by_name,
    toolchain_for,
)
from aot_tune.compile.batches import Jobs, Task
from aot_tune.database import Begun, MeasurementStore, OperatorDatabase, load_databases
from aot_tune.pipeline.build_time import BuildTime, children_seconds, expected_seconds, idle_seconds
from aot_tune.pipeline.cluster.ray_executor import RayExecutor
from aot_tune.pipeline.evidence import Evidence
from aot_tune.pipeline.failures import Failures
from aot_tune.pipeline.loaded_operators import stated_operators
from aot_tune.plan.library_plan import Paths, Plan, Request, make_plan
from aot_tune.plan.preflight import devices
from aot_tune.plan.wanted_targets import generic_dtypes, is_run_by
from aot_tune.render import Candidate, Rendered, Renderer, generic_candidates, resolved
from aot_tune.search.budget import Budget
from aot_tune.spec import ConfigValue, Kernel, Operator, Target
from aot_tune.support.cache_tiers import open_tiers
from aot_tune.support.errors import AotTuneError
from aot_tune.support.limits import usable_cores
from aot_tune.support.processes import busy_now
from aot_tune.support.progress import Progress
from aot_tune.support.storage import cache_location

_SPILLED = 512
"""Bytes that a thread may store and load for lack of registers, in code that no race compares with other code."""
_TRIED = 16
"""So many choices are compiled at most."""
_Generic = tuple[str, str, str, tuple[str, ...]]
"""An operator, its generic kernel, a baseline target, and dtypes."""
_Key = TypeVar("_Key")


class Session:
    """A build's working state. Close it to prune and release the caches.

    `too_large` says which problems are left out for lack of memory. `older` is the target for older CPUs, if any.
    `coming` tells how long each later step will take. `links` is False if the build makes records only. `executor` has
    other machines, if the build uses any. `models` are the digests of the devices to use, all by default. `busy`: other
    programs were seen to use the cores.
    """

    def __init__(
        self,
        plan: Plan,
        paths: Paths,
        progress: Progress,
        budget: Budget | None = None,
        *,
        links: bool = True,
        executor: RayExecutor | None = None,
        models: Collection[str] | None = None,
    ) -> None:
        self.plan, self.options, self.progress, self.links = plan, plan.options, progress, links
        self.executor = executor
        roots = [Path(p) for p in paths.templates]
        self.operators = stated_operators(plan, roots)
        self.renderer = Renderer(roots, paths.compile.by_backend())
        self.environment = _environment(plan, paths)
        self.location = cache_location(self.environment)
        if self.location.message:
            progress.line(self.location.message)
        self.tiers = open_tiers(self.location.tiers, trusted=self.location.trusted, log=progress.line)
        self._untold = self.tiers
        again = plan.options.mode == "tune"
        self.store = MeasurementStore.at(self.location, tiers=() if again else self.tiers)
        if again and self.location.root is not None and self.location.mode == "rw":
            self.store = MeasurementStore.at(msgspec.structs.replace(self.location, mode="fresh"))
        self.threads = plan.options.threads or usable_cores()
        self.time = BuildTime(budget or Budget(plan.options.budget), self.jobs_of("cxx").count, progress.log)
        self.checks = Checks()
        self.failures = Failures(progress.line, stops=plan.options.no_survivor == "stop")
        self.busy = False
        self.coming: dict[str, Callable[[], float]] = {}
        progress.later = lambda: sum(seconds() for seconds in self.coming.values())
        self.too_large: dict[str, None] = {}
        devices_of = devices if executor is None else executor.devices
        devices_here = devices_of(self.threads, plan.families)
        self.devices = [d for d in devices_here if models is None or d.digest in models]
        self.targets = [target_by_name(n) for n in plan.targets]
        self.older = target_by_name(plan.older) if plan.older else None
        self.baselines = [target_by_name(n) for n in plan.baselines]
        self.database = paths.database
        self._caches: dict[str, ObjectCache] = {}
        self._generic: dict[str, Variant] = {}
        self._native = {t.name for t in (native_targets() if executor is None else executor.native())}

    @cached_property
    def databases(self) -> list[OperatorDatabase]:
        """The records that come with the templates. They are read at first use; a check needs none."""
        folder = Path(self.database) if self.database else None
        return load_databases(folder) if folder and folder.is_dir() else []

    @cached_property
    def verdicts(self) -> dict[str, dict[str, str]]:
        """By code, what sanitizers say, as in `CandidateRecord.sanitized`. At first, those of the records."""
        return {c.code: dict(c.sanitized) for d in self.databases for c in d.candidates if c.sanitized}

    def goes_on_with(self, begun: Begun) -> None:
        """Use what an interrupted build has measured."""
        self.store = MeasurementStore.at(self.location, begun)

    def leave_out(self, device: Device) -> None:
        """Measure nothing more on a device."""
        self.devices = [d for d in self.devices if d is not device]

    def leave_problem_out(self, why: str) -> None:
        """Say once which problem is not measured for lack of memory. The report says it too."""
        if why not in self.too_large:
            self.too_large[why] = None
            self.progress.line(f"NOTE {why}")

    def saw(self, seen: Seen | None) -> None:
        """Say once that other programs use the cores, and which."""
        if seen is not None and seen.load > BUSY and not self.busy:
            self.busy = True
            others = ", ".join(f"{name} ({pid})" for pid, name in busy_now())
            self.progress.line(
                f"NOTE the machine is busy: other programs use {seen.load:.1f} of {usable_cores()} cores"
                + (f", such as {others}" if others else "")
                + "; times are less exact"
            )

    def leave_failed_out(self) -> None:
        """Build the library without the operators that failed."""
        self.operators = {n: op for n, op in self.operators.items() if n not in self.failures}

    def close(self) -> None:
        """Prune the caches and remove their scratch folders. If the cache is off, its objects are gone then."""
        for cache in self._caches.values():
            cache.close()
        self.tell_of_tiers()
        self.progress.close()

    def tell_of_tiers(self) -> None:
        """Say once how much each tier of the cache has served."""
        untold, self._untold = self._untold, ()
        for tier in untold:
            self.progress.line(tier.summary())

    def jobs_of(self, backend: str) -> Jobs:
        """How many compilers of a backend run at a time on this machine, and why."""
        memory = toolchain_for(backend, self.environment).memory_per_job()
        return parallel_compiles(self.environment, memory=memory)

    def compilers_of(self, backend: str) -> Jobs:
        """How many compilers of a backend run at a time for candidates, and why."""
        if self.executor is None:
            return self.jobs_of(backend)
        return self.executor.jobs(toolchain_for(backend, self.environment), self.options.jobs)

    def cache(self, backend: str) -> ObjectCache:
        """The object cache of a backend."""
        if backend not in self._caches:
            chain = toolchain_for(backend, self.environment)
            self._caches[backend] = ObjectCache.at(self.location, chain, self.tiers, self.executor)
        return self._caches[backend]

    def _log_compile(self, variant: Variant, made: Object) -> None:
        self.progress.log.add(
            "compilers", "compile", variant.candidate.label, 0.0 if made.cached else made.seconds,
            operator=variant.candidate.operator, target=variant.candidate.target, candidate=variant.name,
            status=made.status, cached=made.cached,
        )  # fmt: skip

    def read_object(self, rendered: Rendered, compiled: Object) -> bytes:
        """What a candidate's object file holds. See `ObjectCache.read`."""
        return self.cache(rendered.candidate.backend).read(rendered, compiled)

    def device_for(self, target: Target) -> Device | None:
        """The first device here that runs a target; None if there is none."""
        return next(iter(self.devices_for(target)), None)

    def devices_for(self, target: Target) -> list[Device]:
        """The devices here that run a target and are of one model."""
        models = self._models_for(target)
        return next(iter(models.values()), [])

    def _models_for(self, target: Target) -> dict[str, list[Device]]:
        """The devices here that run a target, by model."""
        models: dict[str, list[Device]] = {}
        for device in self.devices:
            if is_run_by(device, target, self._native, self.baselines):
                models.setdefault(device.digest, []).append(device)
        return models

    def left_out(self) -> list[str]:
        """A line for each target that other models of devices here run too, beside the one that it is measured on."""
        lines = []
        for target in self.targets if self.plan.may_measure else ():
            first, *others = [of_model[0].name for of_model in self._models_for(target).values()] or [""]
            if others:
                only = f"NOTE {target.name} is measured on {first} only, not on {', '.join(others)}"
                lines.append(f"{only}; `aot-tune tune` makes records of each")
        return lines

    def policy(self, name: str) -> Policy:
        """How devices of a family are measured here. Records of another limit of workspace are of another policy."""
        most = self.options.workspace_max
        return family(name).policy(Policy() if most is None else Policy(workspace_bytes=most))

    def is_recorded(self, device: Device) -> bool:
        """Whether there is a committed record of this very device and policy. Then `auto` uses its measurements."""
        policy = self.policy(device.family).digest
        return any(d.was_made_on(device, policy) for d in self.databases)

    def answers(self, operator: Operator, target: Target) -> bool:
        """Whether an operator has a generic variant on the devices of a target."""
        return any(True for _ in self.generics(operator, target))

    def generic_variants(self, operator: Operator, target: Target | None = None) -> list[Variant]:
        """An operator's rendered generic candidates, for all dtypes: for a target's devices, or for the whole build."""
        every = self.generics(operator, target)
        return [variant for kernel, baseline in every for variant in self.of_generic(operator, kernel, baseline)]

    def of_generic(self, operator: Operator, kernel: Kernel, baseline: Target) -> list[Variant]:
        """The rendered candidates of a generic kernel for a baseline: of its config that fits, if it has several."""
        variants = []
        for dtypes in generic_dtypes(operator, kernel, baseline):
            settled = self._settled.get((operator.name, kernel.name, baseline.name, tuple(dtypes.values())))
            if settled is None:
                config = next(iter(resolved(kernel, baseline.name).configs(baseline.facts)))
                settled = self._of_config(operator, kernel, config, baseline, dtypes)
            variants += [self._generic[variant.id] for variant in settled]
        return variants

    @cached_property
    def _settled(self) -> dict[_Generic, list[Variant]]:
        """The candidates of generic kernels that have several configs: the first that fit."""
        choices: dict[_Generic, Iterator[list[Variant]]] = {}
        for operator in self.operators.values():
            for kernel, baseline in self.generics(operator):
                whole = resolved(kernel, baseline.name)
                for dtypes in generic_dtypes(operator, kernel, baseline) if len(whole.listed) > 1 else ():
                    key = operator.name, kernel.name, baseline.name, tuple(dtypes.values())
                    choices[key] = self._of_configs(operator, whole, baseline, dtypes)
        return self.first_that_fit(choices, "generic")

    def _of_configs(
        self, operator: Operator, kernel: Kernel, baseline: Target, dtypes: dict[str, str]
    ) -> Iterator[list[Variant]]:
        for config in kernel.configs(baseline.facts):
            with suppress(AotTuneError):  # if it is so of all, the first is rendered again
                yield self._of_config(operator, kernel, config, baseline, dtypes)

    def _of_config(
        self,
        operator: Operator,
        kernel: Kernel,
        config: dict[str, ConfigValue],
        baseline: Target,
        dtypes: dict[str, str],
    ) -> list[Variant]:
        variants = []
        for candidate in generic_candidates(operator, kernel, config, baseline, dtypes):
            if candidate.id not in self._generic:
                self._generic[candidate.id] = self.rendered(operator, candidate, baseline)
            variants.append(self._generic[candidate.id])
        return variants

    def first_that_fit(
        self, choices: Mapping[_Key, Iterable[list[Variant]]], what: str, into: Sequence[Evidence] = ()
    ) -> dict[_Key, list[Variant]]:
        """By key, the first choice that compiles and hardly spills; else the one that spills least, or the first.

        Choices of all keys are compiled together.
        """
        waiting = {key: itertools.islice(of_key, _TRIED) for key, of_key in choices.items()}
        best: dict[_Key, tuple[float, list[Variant]]] = {}
        while waiting:
            drawn = {key: variants for key, of_key in waiting.items() if (variants := next(of_key, None))}
            compiled = iter(self.compile(itertools.chain(*drawn.values()), what, into))
            for key, variants in drawn.items():
                made = list(itertools.islice(compiled, len(variants)))
                spilled = max(v.made.resources.get("spill_bytes", 0) if v.compiled else math.inf for v in made)
                if key not in best or spilled < best[key][0]:
                    best[key] = spilled, made
            waiting = {key: waiting[key] for key in drawn if best[key][0] > _SPILLED}
        return {key: made for key, (_, made) in best.items()}

    def generics(self, operator: Operator, target: Target | None = None) -> Iterator[tuple[Kernel, Target]]:
        """An operator's generic kernels and the targets they are compiled for: for a target's devices, or all."""
        for kernel in operator.generics:
            served = families_of(toolchain_for(kernel.backend, self.environment))
            for baseline in self.baselines:
                fits = baseline.family in served and (target is None or baseline.meets(target))
                if fits and generic_dtypes(operator, kernel, baseline):
                    yield kernel, baseline

    def rendered(self, operator: Operator, candidate: Candidate, target: Target) -> Variant:
        """A candidate with its source."""
        return Variant(rendered=self.renderer.render(operator, candidate, target))

    def compile(
        self,
        variants: Iterable[Variant],
        what: str,
        into: Iterable[Evidence] = (),
        ready: Callable[[Variant], None] | None = None,
        then: Callable[[Variant, Object], Task | None] | None = None,
        left: Callable[[float], float] = lambda seconds: seconds,
    ) -> list[Variant]:
        """Compile the variants without an object. A failed compile is a status of its object.

        Each object becomes known to the evidence that it goes `into`, and to this session if it is a generic variant's.
        Then `ready` is called in this thread. If it raises, the compilers are killed, and the other variants get no
        object. `then` is called before, in any thread. It returns work on the variant's object that is left for another
        thread. If `what` is empty, nothing is printed. `left` tells how long the step takes in which the
        variants are compiled, by the seconds that compiling will still take. Returns all variants, with their objects.
        """
        given, knowing = list(variants), list(into)
        waiting = sorted(
            {e.id: e for e in given if e.object is None}.values(),
            # What no one waits for is in an order that tells from the first ones how long all take.
            key=lambda e: (-expected_seconds(self.operators[e.candidate.operator], e), "" if ready or then else e.id),
        )
        by_candidate, objects = {e.id: e for e in waiting}, dict[str, Object]()
        start = since = self.progress.now()
        spent, idle, walls = children_seconds(), idle_seconds(), list[float]()

        def show(p: CompileProgress) -> None:
            nonlocal since
            variant = by_candidate[p.candidate]
            if not p.object.cached:
                walls.append(p.object.seconds)
                self.time.add("compilers", variant.candidate.backend, p.object.seconds, variant.candidate.target)
            durations, now = self.time.durations(variant.target.family), self.progress.now()
            durations.compiled(expected_seconds(self.operators[variant.candidate.operator], variant), now - since)
            since = now
            self._log_compile(variant, p.object)
            if what:
                self.progress.count(
                    f"{what}: compiled",
                    p.done,
                    p.total,
                    since=start,
                    most=self.time.budget.left,
                    left=lambda seconds: None if seconds is None else left(seconds),
                )
            known(variant.id, p.object)
            try:
                if ready is not None:
                    ready(msgspec.structs.replace(variant, object=p.object))
            except BaseException:
                known(variant.id, None)
                raise
            objects[variant.id] = p.object

        def known(candidate: str, new: Object | None) -> None:
            for evidence in knowing:
                evidence.has_become(candidate, new)
            if candidate in self._generic:
                self._generic[candidate] = msgspec.structs.replace(self._generic[candidate], object=new)

        def after(candidate: str, new: Object) -> Task | None:
            return then(by_candidate[candidate], new) if then is not None else None

        backends = sorted({e.candidate.backend for e in waiting})
        compile_batches(
            [
                Batch(self.cache(b), [e.rendered for e in waiting if e.candidate.backend == b], self.compilers_of(b))
                for b in backends
            ],
            show,
            after,
        )
        if backends == ["cxx"] and self.executor is None:  # others keep processes, wait for memory or run elsewhere
            self.time.load.add(children_seconds() - spent, walls, idle_seconds() - idle)
        return [msgspec.structs.replace(e, object=objects.get(e.id)) if e.object is None else e for e in given]


def _environment(plan: Plan, paths: Paths) -> dict[str, str]:
    """The process's environment, with the plan's options and the template roots."""
    options = plan.options
    given = {
        "AOT_TUNE_CACHE": options.cache,
        "AOT_TUNE_CACHE_DIR": options.cache_dir,
        "AOT_TUNE_CACHE_TIERS": ";".join(options.cache_tiers),
        "AOT_TUNE_JOBS": str(options.jobs or ""),
        "AOT_TUNE_TEMPLATE_ROOTS": os.pathsep.join(paths.templates),
        "CXX": paths.cxx,
    }
    return {**os.environ, **{k: v for k, v in given.items() if v}}


@contextmanager
def session_of(request: Request, progress: Progress, *, tells: bool = False) -> Iterator[Session]:
    """A session for a request without a build, closed in the end. If it `tells`, lines say its plan."""
    plan, paths, _ = make_plan(request, os.environ)
    for line in (*plan.summary(), *paths.compilers) if tells else ():
        progress.line(line)
    session = Session(plan, msgspec.structs.replace(paths, compile=plan.compile.with_more(paths.compile)), progress)
    try:
        yield session
    finally:
        session.close()
