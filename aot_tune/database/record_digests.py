"""Digests in a record's text. They find a line that was changed by hand, lost, or merged by git as text.

They are no seal. There is no key, so whoever changes a line on purpose can also change its digest. Each digest is of
all lines that belong together. So it exposes a line from another record, even if every line is well formed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from aot_tune.bench.protocol.measurement_records import BASELINE, Device
from aot_tune.database.record_lines import (
    CandidateLine,
    HeaderLine,
    MeasurementLine,
    PolicyLine,
    ProblemLine,
)
from aot_tune.database.survey_lines import SurveyLine, TimesLine
from aot_tune.support.digests import canonical

__all__ = ["RecordDigests"]

_DIGITS = 16


class RecordDigests:
    """Digests of the lines of one record. `candidates` are its candidates' lines by id.

    A measurement's digest covers the operator's contract, device and policy, the problem, the measurements with their
    candidates' lines, and the versions of the baselines that took part. It does not cover toolchains, because code has
    its own digest.
    """

    def __init__(
        self,
        header: HeaderLine,
        device: Device,
        policy: PolicyLine,
        baselines: Mapping[str, str],
        candidates: Mapping[str, CandidateLine],
    ) -> None:
        self._context = canonical([header.operator, header.contract, device.digest, policy.digest])
        opening = [header.opening] if header.opening else []
        self._head = canonical([header.operator, header.contract, device, policy, baselines, *opening])
        self._baselines = baselines
        self._candidates = {name: canonical(line) for name, line in candidates.items()}
        self._used: set[str] = set()

    def of_problem(self, problem: ProblemLine, measurements: Iterable[MeasurementLine]) -> str:
        """The digest of a problem and its measurements."""
        parts = [self._context, canonical(msgspec.structs.replace(problem, digest=""))]
        for m in sorted(measurements, key=lambda m: m.candidate):
            parts += [self._subject(m.candidate), canonical(m)]
        return _digest(parts)

    def of_times(self, survey: SurveyLine, times: TimesLine) -> str:
        """The digest of a candidate's times on the shapes of a survey line."""
        parts = [self._context, canonical(survey), self._subject(times.candidate)]
        return _digest([*parts, canonical(msgspec.structs.replace(times, digest=""))])

    def of_rest(self, toolchains: Mapping[str, Mapping[str, str]]) -> str:
        """The digest of the head, and of the candidates that are in no digest that was asked for before."""
        rest = [line for name, line in sorted(self._candidates.items()) if name not in self._used]
        return _digest([self._head, canonical(toolchains), *rest])

    def _subject(self, candidate: str) -> bytes:
        self._used.add(candidate)
        if candidate.startswith(BASELINE):
            return self._baselines.get(candidate.removeprefix(BASELINE), "").encode()
        return self._candidates.get(candidate, b"")


def _digest(parts: Sequence[bytes]) -> str:
    return hashlib.sha256(b"\n".join(parts)).hexdigest()[:_DIGITS]
