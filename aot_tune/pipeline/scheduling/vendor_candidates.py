"""Candidates that call a vendor's library: its algorithms are asked for on the device, or taken from its records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import msgspec

from aot_tune.bench.protocol.measurement_records import Device
from aot_tune.compile import families_of, toolchain_for
from aot_tune.database import OperatorDatabase, load_database
from aot_tune.pipeline.evidence import Entry
from aot_tune.pipeline.measuring.vendor_process import Products, VendorAnswer, VendorQuestion, ask_vendor
from aot_tune.pipeline.records.record_writer import records_folder
from aot_tune.pipeline.session import Session
from aot_tune.render import Candidate, candidate_for
from aot_tune.spec import ConfigValue, Kernel, Operator, Problem, Target
from aot_tune.spec.config_guards import may_serve
from aot_tune.support.errors import AotTuneError

__all__ = ["Vendors", "vendor_entries", "worth_trying"]

ProblemConfig = tuple[Problem, dict[str, ConfigValue]]

_PROCESSES, _PER_PROCESS = 12, 4
"""At most so many processes ask at a time, each of so many problems or more: it computes for 0.14 s for one, and takes
a second or two to begin."""
_KERNELS = 4
"""Kernels, each of an operator, about which libraries are asked at a time."""
_PER_PROBLEM = {"quick": (4, 4), "default": (16, 12), "thorough": (32, 24), "exhaustive": (48, 48)}
"""Algorithms drawn for a problem, and those tried of them: what is estimated to take the longest is left out.

In 16 bits, that is: by the times that an H200's record has of 212 such products the best of the 12 was 0.005 % slower
than that of the 16 in the mean, and 0.6 % at most. Of floats the estimate knows less, 13 % at most: all that are drawn
are tried.
"""
_HEURISTIC_SHARE = 0.6
"""Of the algorithms drawn for a problem, so many are the first of the library's own list; the rest is enumerated."""


class Vendors:
    """Vendors' libraries, asked about operators' problems in threads from when this is made until it is left."""

    def __init__(self, session: Session, operators: Iterable[Operator], target: Target, device: Device) -> None:
        self._session, self._target = session, target
        self._threads = ThreadPoolExecutor(_KERNELS)
        self._told: dict[str, list[tuple[Kernel, Future[list[ProblemConfig]]]]] = {}
        for operator in operators:
            asked = [k for k in operator.kernels if _is_wanted(session, operator, k, target)]
            self._told[operator.name] = [
                (k, self._threads.submit(configs_of, session, operator, k, target, device)) for k in asked
            ]

    def __enter__(self) -> Vendors:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(cancel_futures=True)

    def entries(self, operator: Operator) -> list[Entry]:
        """Rendered candidates of one of the operators, each with the problems that it is meant for."""
        found: dict[str, tuple[Candidate, set[str]]] = {}
        for kernel, told in self._told[operator.name]:
            for problem, config in told.result():
                dtypes = {v: problem.dtypes.get(v, choices[0]) for v, choices in operator.dtypes.items()}
                candidate = candidate_for(operator, kernel, config, self._target, problem, dtypes)
                found.setdefault(candidate.id, (candidate, set()))[1].add(problem.id)
        render = self._session.renderer.render
        return [
            Entry.of(operator, render(operator, candidate, self._target), only=frozenset(problems))
            for candidate, problems in found.values()
        ]


def vendor_entries(session: Session, operator: Operator, target: Target, device: Device) -> list[Entry]:
    """Rendered candidates of one operator's vendor kernels, asked for now."""
    with Vendors(session, [operator], target, device) as vendors:
        return vendors.entries(operator)


def _is_wanted(session: Session, operator: Operator, kernel: Kernel, target: Target) -> bool:
    chain = toolchain_for(kernel.backend, session.environment)
    wanted = kernel.algorithms is not None and session.is_named(operator, kernel)
    return wanted and target.family in families_of(chain)


def configs_of(
    session: Session, operator: Operator, kernel: Kernel, target: Target, device: Device
) -> list[ProblemConfig]:
    """Problems with the algorithms to try on them: those recorded on this very device, or what it says now.

    An algorithm of another version of the library stays in a record as it is; `tune` asks again.
    """
    recorded = list(recorded_configs(session, operator, kernel, target, device))
    if recorded and session.options.mode != "tune":
        return recorded
    problems = [p for p in operator.workload_for(target.family) if may_serve(kernel, operator.facts(p))]
    asked = [(p, product) for p in problems if (product := _product(kernel, p)) is not None]
    answer = ask_library(session, kernel, device, [product for _, product in asked])
    drawn, tried = _PER_PROBLEM[session.options.effort]
    return [
        (problem, dict(sorted(config.items())))  # as records have it: labels are part of the library
        for (problem, product), products in zip(asked, answer, strict=False)
        for config in worth_trying(products, drawn, drawn if product.get("dtype") == "f32" else tried)
    ]


def recorded_configs(
    session: Session, operator: Operator, kernel: Kernel, target: Target, device: Device
) -> Iterator[ProblemConfig]:
    """Problems with the algorithms that a record of this very device has for them."""
    for database in (*session.databases, *_last_build(session, operator)):
        if database.operator != operator.name or database.device.digest != device.digest:
            continue
        candidates = {c.id: c.candidate for c in database.candidates}
        for m in database.measurements:
            candidate = candidates.get(m.candidate)
            if candidate is not None and candidate.kernel == kernel.name and candidate.target == target.name:
                yield m.problem, candidate.config


def _last_build(session: Session, operator: Operator) -> list[OperatorDatabase]:
    """What the library's last build on this machine measured of an operator."""
    folder = records_folder(session)
    try:
        return [] if folder is None else [load_database(p) for p in sorted(folder.glob(f"*/{operator.name}.jsonl"))]
    except AotTuneError:
        return []  # of another version: the library is asked again


def _product(kernel: Kernel, problem: Problem) -> Mapping[str, object] | None:
    return kernel.algorithms(problem) if kernel.algorithms is not None else None


def worth_trying(products: Products, drawn: int, tried: int) -> list[dict[str, int]]:
    """Of as many algorithms as are drawn, most from the library's own list, those that are likely the quickest."""
    first = range(products.heuristics)[: max(1, round(drawn * _HEURISTIC_SHARE))]
    enumerated = range(products.heuristics, len(products.configs))[: drawn - len(first)]
    likely = sorted([*first, *enumerated], key=lambda i: products.costs[i])[:tried]
    return [products.configs[i] for i in sorted(likely)]


def ask_library(
    session: Session, kernel: Kernel, device: Device, products: Sequence[Mapping[str, object]]
) -> list[Products]:
    """Ask the library in processes of their own; without an answer, its own choice at run time is all that is tried."""
    if not products:
        return []
    begun = session.progress.now()
    count = max(1, min(_PROCESSES, session.jobs_of(kernel.backend).count, len(products) // _PER_PROCESS))
    parts = [products[i::count] for i in range(count)]
    with ThreadPoolExecutor(count) as pool:
        told = list(pool.map(partial(_ask_process, session, kernel, device), parts))
    for i, part in enumerate(parts) if count > 1 else ():
        if told[i].error:  # a device may be set to take one process at a time
            told[i] = _ask_process(session, kernel, device, part)
    answers = [one for one in told if not one.error]
    if len(answers) < count:
        reason = next(one.error for one in told if one.error)
        session.progress.line(f"{kernel.backend}: its algorithms are not tried one by one: {reason}")
        return []
    found = [answers[i % count].products[i // count] for i in range(len(products))]
    session.progress.line(
        f"{kernel.backend} version {answers[0].version}: {sum(len(p.configs) for p in found)} algorithms "
        f"listed for {len(products)} problems in {session.progress.now() - begun:.0f} s"
    )
    return found


def _ask_process(
    session: Session, kernel: Kernel, device: Device, products: Sequence[Mapping[str, object]]
) -> VendorAnswer:
    """What the library says of products in one process, on the machine that has the device."""
    question = VendorQuestion(
        backend=kernel.backend,
        products=msgspec.json.encode(products),
        limit=_PER_PROBLEM[session.options.effort][0] + 16,
    )
    executor = session.executor
    if executor is not None and executor.has(device):
        answer = executor.ask_vendor(question, device)
    else:
        answer = ask_vendor(question, device.unit)
    complete = answer.error or len(answer.products) == len(products)
    return answer if complete else VendorAnswer(error="its answer is not of all problems")
