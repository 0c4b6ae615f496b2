"""Candidates that call a vendor's library. The device lists its algorithms, or its records have them."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import msgspec

from aot_tune.bench.protocol.measurement_records import Device
from aot_tune.compile import Variant, families_of, toolchain_for
from aot_tune.database import OperatorDatabase, load_database
from aot_tune.pipeline.evidence import Proposal
from aot_tune.pipeline.measuring.vendor_process import Products, VendorAnswer, VendorQuestion, ask_vendor
from aot_tune.pipeline.records.record_writer import records_folder
from aot_tune.pipeline.session import Session
from aot_tune.pipeline.wanted_kernels import is_named
from aot_tune.render import Candidate, candidate_for
from aot_tune.spec import ConfigValue, Kernel, Operator, Problem, Target
from aot_tune.spec.kernel import may_serve
from aot_tune.support.errors import AotTuneError

ProblemConfig = tuple[Problem, dict[str, ConfigValue]]

_PROCESSES, _PER_PROCESS = 12, 4
"""The most processes that ask at the same time, and the fewest problems for each.

A process starts in one or two seconds and computes for 0.14 s on a problem."""
_KERNELS = 4
"""How many kernels are asked about at the same time. Each belongs to one operator."""
_PER_PROBLEM = {"quick": (4, 4), "default": (16, 12), "thorough": (32, 24), "exhaustive": (48, 48)}
"""By effort: how many algorithms are drawn for a problem, and how many of them are tried.

Those with the longest estimated times are left out, in 16 bits only. For floats the estimate is less reliable: all
drawn algorithms are tried.
"""
_HEURISTIC_SHARE = 0.6
"""The share of the drawn algorithms that comes from the library's own list. The others are enumerated."""


class Vendors:
    """In the block, threads ask vendors' libraries about operators' problems, but for those that records `named`."""

    def __init__(
        self,
        session: Session,
        operators: Iterable[Operator],
        target: Target,
        device: Device,
        named: Callable[[str], Container[str]] = lambda _operator: (),
    ) -> None:
        self._session, self._target = session, target
        self._threads = ThreadPoolExecutor(_KERNELS)
        self._told: dict[str, list[tuple[Kernel, Future[list[ProblemConfig]]]]] = {}
        for operator in operators:
            asked = [k for k in operator.kernels if _is_wanted(session, operator, k, target)]
            self._told[operator.name] = [
                (k, self._threads.submit(configs_of, session, operator, k, target, device, named(operator.name)))
                for k in asked
            ]

    def __enter__(self) -> Vendors:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(cancel_futures=True)

    def proposals(self, operator: Operator) -> list[Proposal]:
        """Rendered candidates of one operator, each with the problems that it is meant for."""
        by_id: dict[str, tuple[Candidate, set[str]]] = {}
        for kernel, answer in self._told[operator.name]:
            for problem, config in answer.result():
                dtypes = {v: problem.dtypes.get(v, choices[0]) for v, choices in operator.dtypes.items()}
                candidate = candidate_for(operator, kernel, config, self._target, problem, dtypes)
                by_id.setdefault(candidate.id, (candidate, set()))[1].add(problem.id)
        rendered = self._session.rendered
        return [
            Proposal(rendered(operator, candidate, self._target), frozenset(problems))
            for candidate, problems in by_id.values()
        ]


def vendor_variants(session: Session, operator: Operator, target: Target, device: Device) -> list[Variant]:
    """Rendered candidates of one operator's vendor kernels. The library is asked now."""
    with Vendors(session, [operator], target, device) as vendors:
        return [p.variant for p in vendors.proposals(operator)]


def _is_wanted(session: Session, operator: Operator, kernel: Kernel, target: Target) -> bool:
    chain = toolchain_for(kernel.backend, session.environment)
    wanted = kernel.algorithms is not None and is_named(session, operator, kernel)
    return wanted and target.family in families_of(chain)


def configs_of(
    session: Session, operator: Operator, kernel: Kernel, target: Target, device: Device, named: Container[str] = ()
) -> list[ProblemConfig]:
    """Problems with the algorithms to try: recorded on this very device, or what the library says now."""
    recorded = list(recorded_configs(session, operator, kernel, target, device))
    if recorded and session.options.mode != "tune":
        return recorded
    unnamed = (p for p in operator.workload_for(target.family) if p.id not in named)
    problems = [p for p in unnamed if may_serve(kernel, operator.facts(p))]
    asked = [(p, product) for p in problems if (product := _product(kernel, p)) is not None]
    answer = ask_library(session, kernel, device, [product for _, product in asked])
    drawn, tried = _PER_PROBLEM[session.options.effort]
    return [
        (problem, dict(sorted(config.items())))  # sorted as in records, because labels are part of the library
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
        return []  # they are of another version, so the library is asked again


def _product(kernel: Kernel, problem: Problem) -> Mapping[str, object] | None:
    return kernel.algorithms(problem) if kernel.algorithms is not None else None


def worth_trying(products: Products, drawn: int, tried: int) -> list[dict[str, int]]:
    """From the library's list, and some enumerated ones, the algorithms that are likely the fastest."""
    first = range(products.heuristics)[: max(1, round(drawn * _HEURISTIC_SHARE))]
    enumerated = range(products.heuristics, len(products.configs))[: drawn - len(first)]
    likely = sorted([*first, *enumerated], key=lambda i: products.costs[i])[:tried]
    return [products.configs[i] for i in sorted(likely)]


def ask_library(
    session: Session, kernel: Kernel, device: Device, products: Sequence[Mapping[str, object]]
) -> list[Products]:
    """Ask the library in separate processes. Without an answer, only its own choice at run time is tried."""
    if not products:
        return []
    begun = session.progress.now()
    count = max(1, min(_PROCESSES, session.jobs_of(kernel.backend).count, len(products) // _PER_PROCESS))
    parts = [products[i::count] for i in range(count)]
    with ThreadPoolExecutor(count) as pool:
        replies = list(pool.map(partial(_ask_process, session, kernel, device), parts))
    for i, part in enumerate(parts) if count > 1 else ():
        if replies[i].error:  # a device may allow one process at a time
            replies[i] = _ask_process(session, kernel, device, part)
    answers = [answer for answer in replies if not answer.error]
    if len(answers) < count:
        reason = next(answer.error for answer in replies if answer.error)
        session.progress.line(f"{kernel.backend}: its algorithms are not tried one by one: {reason}")
        return []
    merged = [answers[i % count].products[i // count] for i in range(len(products))]
    session.progress.line(
        f"{kernel.backend} version {answers[0].version}: {sum(len(p.configs) for p in merged)} algorithms "
        f"listed for {len(products)} problems in {session.progress.now() - begun:.0f} s"
    )
    return merged


def _ask_process(
    session: Session, kernel: Kernel, device: Device, products: Sequence[Mapping[str, object]]
) -> VendorAnswer:
    """A library's answer about products, from one process on the machine that has the device."""
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
    return answer if complete else VendorAnswer(error="its answer does not cover all problems")
