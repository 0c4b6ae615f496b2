"""The result of compiling every candidate, by kernel and target: plain data, and lines for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from aot_tune.report.report_text import counted

_WIDTH = 400
"""How many characters of an error are printed. Names of template instances can be pages long."""


class FailureKind(msgspec.Struct, frozen=True, kw_only=True):
    """Candidates of a kernel that failed alike: status, the first with its error, count. `name`: for `aot-tune try`."""

    status: str
    candidate: str
    name: str
    error: str
    count: int


class Interpreted(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a Triton function in Triton's interpreter on one problem. `text` says what is wrong."""

    verdict: Literal["right", "wrong", "not runnable"]
    problem: str = ""
    candidate: str = ""
    text: str = ""


class CompiledKernel(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel for one target.

    `fit` candidates have an object. `spilled` of these keep registers in memory: at most `spill_bytes` for a thread, in
    the candidate `spill_where`. `left_out` were not compiled, because the first ones failed alike. `no_reason` says why
    a kernel rightly has no candidate at all. `registers`, `shared` and `stack` are the largest values of those that
    fit; all but the first are in bytes. A reference that fails has no kernel, and `numpy` or `torch` as its target.
    """

    operator: str
    kernel: str
    target: str
    backend: str
    fit: int = 0
    spilled: int = 0
    spill_bytes: int = 0
    spill_where: str = ""
    registers: int = 0
    shared: int = 0
    stack: int = 0
    failures: tuple[FailureKind, ...] = ()
    left_out: int = 0
    interpreted: Interpreted | None = None
    no_reason: str = ""

    @property
    def name(self) -> str:
        """Operator, kernel and target in one text."""
        return f"{self.operator}/{self.kernel} for {self.target}"

    @property
    def failed(self) -> int:
        """Candidates without an object."""
        return sum(f.count for f in self.failures)

    @property
    def is_lost(self) -> bool:
        """Whether it has candidates, but none that compiles."""
        return not self.fit and bool(self.failures)

    @property
    def is_wrong(self) -> bool:
        """Whether its function computes something else in Triton's interpreter."""
        return self.interpreted is not None and self.interpreted.verdict == "wrong"

    @property
    def is_faulty(self) -> bool:
        """Whether anything is wrong with it: a candidate failed, or its function computes something else."""
        return bool(self.failures) or self.is_wrong


def compiled_lines(kernel: CompiledKernel) -> list[str]:
    """Lines on a kernel: how many of its candidates fit, spill and fail, and the first error of each kind."""
    if kernel.no_reason:
        return [f"{kernel.name}: no candidate: {kernel.no_reason}"]
    if not kernel.kernel:
        arrays = {"numpy": "numpy's arrays", "torch": "torch's tensors, which a build for a GPU gives it"}
        why = kernel.failures[0]
        text = f"{_shortened(why.error)} ({why.candidate})"
        return [f"{kernel.operator}: its reference fails on {arrays[kernel.target]}: {text}"]
    total = kernel.fit + kernel.failed
    counts = [f"{kernel.fit} fit"]
    if kernel.spilled:
        counts.append(f"{kernel.spilled} of them spill, {kernel.spill_bytes} bytes at most ({kernel.spill_where})")
    counts += [f"{kernel.failed} fail"] if kernel.failed else []
    counts += [f"{kernel.left_out} more are left out, because these fail alike"] if kernel.left_out else []
    lines = [f"{kernel.name}: {counted(total, 'candidate')}, {', '.join(counts)}{_most(kernel)}"]
    for kind in kernel.failures:
        times = f" {kind.count} times" if kind.count > 1 else ""
        who = f"{kind.candidate}, {kind.name}" if kind.name else kind.candidate
        lines.append(f"  {kind.status}{times}: {_shortened(kind.error)} ({who})")
    if kernel.interpreted is not None:
        lines.append(f"  in Triton's interpreter {_told(kernel.interpreted)}")
    return lines


def _most(kernel: CompiledKernel) -> str:
    amounts = {"registers": kernel.registers, "bytes of shared memory": kernel.shared, "bytes of stack": kernel.stack}
    used = [f"{count} {what}" for what, count in amounts.items() if count]
    return f"; at most {', '.join(used)}" if used else ""


def _told(result: Interpreted) -> str:
    where = f" on '{result.problem}' ({result.candidate})" if result.problem else ""
    return f"{result.verdict}{where}{f': {_shortened(result.text)}' if result.text else ''}"


def _shortened(text: str) -> str:
    return text if len(text) <= _WIDTH else f"{text[:_WIDTH]}..."


def compiled_summary(results: Sequence[CompiledKernel]) -> list[str]:
    """A summary of all kernels, the kernels without a candidate that compiles, and the references that fail."""
    compiled = [k for k in results if k.kernel]
    fit, failed, spilled = (sum(getattr(k, n) for k in compiled) for n in ("fit", "failed", "spilled"))
    kernels = counted(len({(k.operator, k.kernel) for k in compiled}), "kernel")
    spilling = f", {spilled} of them spill" if spilled else ""
    lines = [f"{kernels}, {counted(fit + failed, 'candidate')}: {fit} fit{spilling}, {failed} fail"]
    lines += [f"NONE COMPILES of {k.name}" for k in compiled if k.is_lost]
    lines += [f"WRONG in Triton's interpreter: {k.name}" for k in compiled if k.is_wrong]
    return lines + [f"FAILS: the reference of {k.operator} on {k.target}" for k in results if not k.kernel]
