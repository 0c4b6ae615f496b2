"""The text of a store: groups of a record's lines, each appended at once. What is torn or damaged costs itself alone.

The first group is the head. Each other one is a screen, or a race with all of its entrants: lines of candidates that
the text did not have, the problem, and the measurements. The problem's digest is of all these lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec

from aot_tune.bench.protocol.measurement_records import BASELINE, Device, Measurement, Policy, is_baseline
from aot_tune.database.format import candidate_of, measurement_of, problem_line, problem_of
from aot_tune.database.record_lines import (
    GROUP_END,
    SCHEMA,
    STORE,
    CandidateLine,
    HeaderLine,
    MeasurementLine,
    PolicyLine,
    RecordDigests,
    RecordLine,
    decode_line,
    encode_line,
)
from aot_tune.database.records import OperatorDatabase, canonical_database
from aot_tune.spec import Problem
from aot_tune.support.digests import canonical_digest
from aot_tune.support.errors import DatabaseError

__all__ = ["END", "Group", "Head", "database_of_store", "encode_group", "group_name", "is_store", "read_groups"]

END = b"\n" + GROUP_END + b"\n"
_START = b'{"header":{"format":"%s"' % STORE.encode()
_DIGITS = 24


@dataclass(frozen=True)
class Head:
    """What all groups of a text have in common."""

    header: HeaderLine
    device: Device
    policy: PolicyLine

    @classmethod
    def of(cls, operator: str, contract: str, device: Device, policy: Policy, kind: str = "") -> Head:
        """The head for an operator of the digest `contract`. `kind` is as in `PolicyLine.of`."""
        header = HeaderLine(format=STORE, schema=SCHEMA, operator=operator, contract=contract)
        return cls(header, msgspec.structs.replace(device, unit=""), PolicyLine.of(policy, kind))

    @classmethod
    def read(cls, text: bytes, name: str) -> Head:
        """The head of a text.

        Raises:
            DatabaseError: with `name` and the line, when it has none of this schema.
        """
        rows = text[: text.find(END)].split(b"\n")
        lines = [decode_line(row, f"{name}:{number}") for number, row in enumerate(rows, 1)]
        if not _is_head(lines):
            raise DatabaseError(f"{name}:1: it has no head of a store", fix="name another text of the store")
        header, device, policy = lines[0].header, lines[1].device, lines[2].policy
        assert header is not None
        assert device is not None
        assert policy is not None
        if (header.format, header.schema) != (STORE, SCHEMA):
            raise DatabaseError(
                f"{name}:1: it is of format {header.format!r}, schema {header.schema}",
                why=f"this version reads {STORE!r} of schema {SCHEMA}",
                fix="use the version of aot_tune that wrote it, or measure again",
            )
        return cls(header, device, policy)

    @cached_property
    def stem(self) -> str:
        """Name of the text, without its ending."""
        identity = [STORE, SCHEMA, self.header.contract, self.device.digest, self.policy.digest]
        return f"{self.header.operator}-{canonical_digest(identity)[:_DIGITS]}"

    @cached_property
    def text(self) -> bytes:
        """Its lines."""
        lines = RecordLine(header=self.header), RecordLine(device=self.device), RecordLine(policy=self.policy)
        return b"".join(map(encode_line, lines)) + END[1:]

    @cached_property
    def digests(self) -> RecordDigests:
        """Makes the digests of its groups. What they are of names its own code, so they need no other lines."""
        return RecordDigests(self.header, self.device, self.policy, {}, {})


class Group(msgspec.Struct, frozen=True, gc=False):
    """A screen, or a race with all of its entrants, with lines of some of its candidates.

    `at` is when it was written, in ns since the epoch.
    """

    at: int
    raced: bool
    problem: Problem
    measurements: tuple[MeasurementLine, ...]
    candidates: tuple[CandidateLine, ...] = ()

    @property
    def name(self) -> str:
        """Says what was measured, see `group_name`."""
        return group_name([subject_of(m.candidate, m.code) for m in self.measurements], self.problem, raced=self.raced)


def group_name(subjects: Iterable[str], problem: Problem, *, raced: bool) -> str:
    """Names the screen or the race of these subjects on a problem."""
    return "\n".join(["race" if raced else "screen", problem.key, *sorted(set(subjects))])


def subject_of(candidate: str, code: str) -> str:
    """What was measured: a code, or a version of a baseline."""
    return code if code and not is_baseline(candidate) else f"{candidate}@{code}"


def encode_group(group: Group, digests: RecordDigests) -> bytes:
    """The lines of a group."""
    line = msgspec.structs.replace(problem_line(group.problem), at=group.at, raced=group.raced)
    line = msgspec.structs.replace(line, digest=digests.of_problem(line, group.measurements, group.candidates))
    lines = [
        *(RecordLine(candidate=c) for c in group.candidates),
        RecordLine(problem=line),
        *(RecordLine(measurement=m) for m in group.measurements),
    ]
    return b"".join(map(encode_line, lines)) + END[1:]


def read_groups(text: bytes, digests: RecordDigests) -> Iterator[Group | None]:
    """The groups of a text that ends with a whole one, without the head. None stands for a part that is damaged."""
    lines: list[RecordLine] = []
    damaged = False
    for row in text.split(b"\n")[:-1]:
        if row != GROUP_END:
            try:
                lines.append(decode_line(row, ""))
            except DatabaseError:
                lines, damaged = [], True
            continue
        group = _group(lines, digests)
        if damaged or (group is None and not _is_head(lines)):
            yield None
        if group is not None:
            yield group
        lines, damaged = [], False


def _is_head(lines: Sequence[RecordLine]) -> bool:
    kinds = [line.header or line.device or line.policy for line in lines]
    return [type(kind) for kind in kinds] == [HeaderLine, Device, PolicyLine]


def _group(lines: Sequence[RecordLine], digests: RecordDigests) -> Group | None:
    candidates = tuple(line.candidate for line in lines if line.candidate is not None)
    measurements = tuple(line.measurement for line in lines if line.measurement is not None)
    (problem,) = [line.problem for line in lines if line.problem is not None][-1:] or (None,)
    if problem is None or len(candidates) + 1 + len(measurements) != len(lines) or not measurements:
        return None
    if problem.digest != digests.of_problem(problem, measurements, candidates):
        return None
    return Group(problem.at, problem.raced, problem_of(problem), measurements, candidates)


def is_store(text: bytes) -> bool:
    """Whether a text is that of a store, of whatever schema."""
    return text.startswith(_START)


def database_of_store(text: bytes, name: str) -> OperatorDatabase:
    """What the text of a store says, as a record would. Of each candidate, only the code that was measured last counts.

    Times of races count before those of screens, and later ones before earlier ones.

    Raises:
        DatabaseError: with `name`, when it has no head of this schema, or contradicts itself.
    """
    head = Head.read(text, name)
    whole = text[: text.rfind(END) + len(END)]
    groups = sorted(filter(None, read_groups(whole, head.digests)), key=lambda g: g.at)
    codes = {m.candidate: m.code for group in groups for m in group.measurements}
    lines = [line for group in groups for line in group.candidates]
    records = [candidate_of(line, head.header.operator, name) for line in lines]
    candidates = {record.id: record for record in records if record.code == codes.get(record.id)}
    measured: dict[tuple[str, str], Measurement] = {}
    for group in sorted(groups, key=lambda g: g.raced):
        for m in group.measurements:
            at = group.problem.key, m.candidate
            known = is_baseline(m.candidate) or m.candidate in candidates
            if not known or m.code != codes[m.candidate] or (m.status == "skipped" and is_baseline(m.candidate)):
                continue
            if m.status != "skipped" or at not in measured:  # as a build takes them
                code = "" if is_baseline(m.candidate) else m.code
                measured[at] = measurement_of(m, group.problem, code, head.device.digest, head.policy.digest)
    return canonical_database(
        OperatorDatabase(
            operator=head.header.operator,
            contract=head.header.contract,
            device=head.device,
            policy=head.policy.fields,
            policy_digest=head.policy.digest,
            toolchains={},
            baselines={c.removeprefix(BASELINE): version for c, version in codes.items() if is_baseline(c)},
            candidates=tuple(candidates.values()),
            problems=(),
            measurements=tuple(measured.values()),
        )
    )
