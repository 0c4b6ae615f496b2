"""A worker process: `aot_tune.bench.worker SETUP`, where SETUP is JSON. Started by the bench, never forked.

It answers one request after the other until its pipe closes. Standard output belongs to the candidates.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
import traceback
from collections.abc import Container
from pathlib import Path

import msgspec

from aot_tune.bench.devices.family import family
from aot_tune.bench.protocol import messages
from aot_tune.bench.protocol.channel import HELLO, ClosedError, opened, read_frame, write_frame
from aot_tune.bench.protocol.measurement_records import WORKER_FAULT
from aot_tune.bench.protocol.messages import Setup
from aot_tune.bench.worker import sandbox
from aot_tune.bench.worker.process_state import ProcessState, changes, left_threads, state_now
from aot_tune.bench.worker.worker_session import Emit, WorkerSession, session_of
from aot_tune.spec.load_operators import MODULE_PREFIX
from aot_tune.support import processes
from aot_tune.support.kernel_features import features, set_subreaper

_LATE = 0.01
"""Threads of OpenMP that are too many end sooner."""


def main(arguments: list[str]) -> int:
    """Run until told to quit or until the parent is gone; returns the exit status."""
    setup = msgspec.json.decode(arguments[0].encode(), type=Setup)
    sandbox.tie_to_parent(setup.parent)
    sandbox.set_name(processes.NAME)
    for descriptor in (setup.requests, setup.replies):
        os.set_inheritable(descriptor, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the bench decides when a worker ends
    kind = family(setup.device.family)
    notes = _confine(setup, kind.writable())
    session = session_of(setup.policy, setup.role, setup.device)
    hello = messages.Hello(
        pid=os.getpid(),
        abi=messages.PROTOCOL,
        device=dict(kind.seen(setup.device, setup.threads)),
        unit=kind.unit_here(),
        sandbox=features(),
        notes=notes,
    )
    write_frame(setup.replies, HELLO + messages.encode(hello))
    _serve(setup, session)
    return 0


def _confine(setup: Setup, more: tuple[Path, ...]) -> tuple[str, ...]:
    set_subreaper(True)
    frameworks = setup.role == "framework"
    sandbox.limit(1 << 40 if frameworks else setup.policy.output_bytes)
    sandbox.mark(setup.mark)
    writable = [Path(setup.scratch), Path("/dev/null"), *more]
    if not family(setup.device.family).on_host:
        writable.append(Path("/dev/shm"))  # noqa: S108  # which drivers need
    if setup.shared:
        writable.append(Path(setup.shared))
    note = sandbox.restrict(writable)
    return (note,) if note else ()


def _serve(setup: Setup, session: WorkerSession) -> None:
    pid, asked = os.getpid(), [b""]

    def emit(message: messages.Reply) -> None:
        if os.getpid() != pid:  # a candidate forked and both processes returned, but only one of them may answer
            os._exit(0)
        write_frame(setup.replies, asked[0] + messages.encode(message))

    libc = ctypes.CDLL(None)
    watched, on_host = setup.role == "candidate", family(setup.device.family).on_host
    turned: set[str] = set()
    before, common = state_now(on_host=on_host), state_now(on_host=False)
    while True:
        try:
            asked[0], data = opened(read_frame(setup.requests))
        except ClosedError:
            return
        try:
            request = messages.decode_request(data)
        except msgspec.MsgspecError as error:
            emit(messages.Failure(kind="protocol", reason=f"this request is not understood: {error}"))
            continue
        if isinstance(request, messages.Quit):
            return
        left = None
        if watched and on_host and isinstance(request, messages.Unload):  # before the code of its threads is unloaded
            left = _left(before, session)
        reply = left or _answer(session, request, emit)
        libc.fflush(None)
        orphans = processes.reap_children()
        if watched:
            left = left or _left_processes(orphans)
            ends = messages.ends_a_turn(request, unloads=on_host) or isinstance(reply, messages.Failure)
            whole = on_host and ends and not _is_undisturbed(request, turned)
            reply = left or _changed(before if whole else common, on_host=whole) or reply
        if isinstance(request, messages.Turn):
            turned.add(request.handle)
        elif isinstance(request, messages.Unload):
            turned.discard(request.handle)
        emit(reply)
        if isinstance(reply, messages.Failure) and reply.last:
            return


def _is_undisturbed(request: messages.Request, turned: Container[str]) -> bool:
    """Whether nothing may disturb the next turn's times after this turn of a race: it is not the first or the last.

    `turned` are the handles of the runners that have had a turn.
    """
    return isinstance(request, messages.Turn) and not request.fresh and request.handle in turned


def _changed(before: ProcessState, *, on_host: bool) -> messages.Failure | None:
    """What a candidate has changed of its process. If anything, the next candidate does not get this process."""
    changed = changes(before, on_host=on_host)
    if not changed:
        return None
    reason = f"it changes {'; '.join(changed)}"
    return messages.Failure(kind="process", reason=reason, status="failed", last=True)


def _left(before: ProcessState, session: WorkerSession) -> messages.Failure | None:
    """Which threads a candidate leaves running after its turn, or what one that ended only now has written to."""
    began, left = time.monotonic(), left_threads(before)
    if left:
        return messages.Failure(kind="process", reason=left, status="leaves-threads", last=True)
    if time.monotonic() - began > _LATE and (written := session.written()):
        return messages.Failure(kind="process", reason=written, status="wrong-result", last=True)
    return None


def _left_processes(count: int) -> messages.Failure | None:
    """Processes of a candidate that it has not waited for."""
    reason = f"leaves {count} process{'es' * (count > 1)}"
    return messages.Failure(kind="process", reason=reason, status="leaves-threads", last=True) if count else None


def _answer(session: WorkerSession, request: messages.Request, emit: Emit) -> messages.Reply:
    try:
        return session.handle(request, emit)
    except MemoryError as error:
        session.clean()
        return messages.Failure(kind="MemoryError", reason=str(error) or "out of memory", status="oom")
    except Exception as error:
        session.clean()
        traceback.print_exc()
        return messages.Failure(
            kind=type(error).__name__, reason=f"{WORKER_FAULT}{type(error).__name__}: {error}{_place(error)}"
        )


def _place(error: BaseException) -> str:
    """The innermost line of an operator's module that an error passed through, such as ` (operator.py:12)`."""
    line, trace = "", error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if str(frame.f_globals.get("__name__")).startswith(MODULE_PREFIX):
            line = f" ({Path(frame.f_code.co_filename).name}:{trace.tb_lineno})"
        trace = trace.tb_next
    return line


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(status)  # what candidates have registered to run at exit does not run
