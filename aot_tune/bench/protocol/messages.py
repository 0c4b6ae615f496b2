"""Typed messages between a build and its workers: JSON, never code. The field `type` tells those of the bench apart."""

from __future__ import annotations

from typing import Literal

import msgspec

from aot_tune.bench.protocol.measurement_records import WORKER_FAULT, Check, Device, Policy, Role, Status
from aot_tune.spec import ConfigValue, Declarations

PROTOCOL = 9
"""Version of these messages, sent in Hello."""


class InterpreterRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One config of a Triton kernel of the operator in `folder`. It is run on a check as it would run on the target.

    `inspections` is what the kernel's function declares, see `triton.ask_declarations`. `roots` are the
    folders that contain the files of functions.
    """

    folder: str
    kernel: str
    target: str
    config: dict[str, ConfigValue]
    check: Check
    inspections: dict[str, dict[str, Declarations]]
    roots: list[str]
    seed: int


class InterpreterAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the result is right. `text` says what is wrong, or why there is no result."""

    verdict: Literal["right", "wrong", "not runnable"]
    text: str = ""


class TriedReference(msgspec.Struct, frozen=True, kw_only=True):
    """The reference of the operator in `folder`, run on a check with numpy's arrays or with torch's tensors."""

    folder: str
    check: Check
    arrays: Literal["numpy", "torch"]
    seed: int


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker is started with. `shared` is where it writes references, and is empty for candidates' workers.

    `mark` identifies its descendants, see `support.processes.mark_of`.
    """

    device: Device
    role: Role
    threads: int
    policy: Policy
    parent: int
    requests: int
    replies: int
    scratch: str
    shared: str = ""
    mark: int = 0


class WatchedCalls(msgspec.Struct, frozen=True, kw_only=True):
    """A variant's calls under a sanitizer. `larger` are more problems, the smallest first, see `WatchedJob.shared`."""

    path: str
    symbol: str
    operator_folder: str
    checks: tuple[Check, ...]
    larger: tuple[Check, ...] = ()


class WatchedJob(msgspec.Struct, frozen=True, kw_only=True):
    """What `bench.worker.watched_calls` does. With `shared`, each variant goes on until two threads share a call."""

    device: Device
    policy: Policy
    scratch: str
    variants: tuple[WatchedCalls, ...]
    shared: bool = False


class _Message(msgspec.Struct, kw_only=True, tag_field="type", tag=str.lower, forbid_unknown_fields=True):
    pass


class Quit(_Message):
    """End the worker."""


class Ping(_Message):
    """Ask for a Pong."""


class Work(_Message):
    """Tell a worker a problem: where its operator and its reference results are.

    Buffers are made when they are needed.
    """

    key: str
    operator_folder: str
    check: Check
    folder: str


class Prepare(_Message):
    """Make the buffers and inputs of a known problem now, so that no candidate pays for it.

    With `probe`, find out whether timed calls will find the cold tensors cold.
    """

    key: str
    probe: bool = False


class Reference(_Message):
    """Compute the reference results and tolerances of a problem into `folder`, which does not exist yet."""

    operator_folder: str
    check: Check
    folder: str


class Load(_Message):
    """Load a shared object. `handle` is its name from now on.

    With a `variant`, it is a whole library, and `symbol` is an operator's public function. See `loaded_objects.Linked`.
    """

    handle: str
    path: str
    symbol: str
    variant: str = ""


class Unload(_Message):
    """Forget a handle and close its shared object."""

    handle: str


class Verify(_Message):
    """Run a loaded candidate on problems, and compare with their references: a plan, see `verification.plan`.

    With `renewed`, there are first calls on other contents of the same memory. Then come those that are compared.
    """

    handle: str
    keys: tuple[str, ...]
    quick: bool = False
    renewed: bool = False
    repeat: bool = False
    threads: int = 0


class Screen(_Message):
    """Screen a verified candidate: a few samples, and fewer when it is slow."""

    handle: str
    key: str
    best_ns: float | None = None


class SurveyOne(_Message):
    """Time a loaded candidate as a screen does, on a problem that has no reference results.

    The first candidate on a problem leaves its results there. Those of the others are compared with them, unless it is
    timed `again`. `best_ns` is the best time so far.
    """

    handle: str
    key: str
    first: bool = False
    again: bool = False
    best_ns: float | None = None


class PrepareBaseline(_Message):
    """Import a baseline's module, and prepare it on a problem. `handle` is its name from now on."""

    handle: str
    key: str
    name: str


class Turn(_Message):
    """Time one sample of `calls` calls, after `warm` calls that are not timed. `poison` first poisons the outputs.

    `fresh` poisons them too, verifies what the calls made, and finds out whether repeated calls do less. With `clock`,
    the device's clock is probed afterwards. `resumed` says that another process may have used the device since this
    worker's last turn.
    """

    handle: str
    key: str
    calls: int
    warm: int
    fresh: bool = False
    poison: bool = False
    clock: bool = False
    resumed: bool = True


Request = (
    Quit | Ping | Work | Prepare | Reference | Load | Unload | Verify | Screen | SurveyOne | PrepareBaseline | Turn
)


class Hello(_Message):
    """A worker's first message.

    `abi` is the protocol's version, `sandbox` what holds the worker, `notes` what could not. `unit` is what the driver
    calls the device, empty if it does not tell.
    """

    pid: int
    abi: int
    device: dict[str, str | int]
    sandbox: dict[str, int]
    notes: tuple[str, ...] = ()
    unit: str = ""


class Pong(_Message):
    """The answer to Ping."""


class Place(_Message):
    """Where a worker is now, and its memory. The bench reports it if the worker dies before its answer."""

    place: str
    resident_bytes: int


class Done(_Message):
    """A request without a result was carried out.

    `remark` belongs to all times of the problem, or is for the operator's author if a reference was computed. `log` is
    a line to log once.
    """

    remark: str = ""
    log: str = ""


class Empty(_Message):
    """A baseline cannot run here. The reason says why."""

    reason: str


class Checked(_Message):
    """The result of a verification. `runs` are ns of the single calls of the last problem."""

    status: Status
    reason: str = ""
    error: float = 0.0
    bitwise: bool | None = None
    runs: tuple[float, ...] = ()


class Timed(_Message):
    """Samples in ns per call, the overhead (see `Measurement`), and growth of the process in bytes per call.

    `status` is not ok when the outputs of the timed calls were wrong, or a call failed. If it is ok, `reason` may be a
    note. `mhz` is the device's clock, if it was asked for and is known. `threads` is as in `Measurement`.
    """

    samples: tuple[float, ...]
    overhead: float = 0.0
    leak: int = 0
    status: Status = "ok"
    reason: str = ""
    mhz: float = 0.0
    threads: int = 0


class Failure(_Message):
    """A request that could not be carried out. `kind` is the class of the error.

    The worker lives on, unless this is its `last` answer: the failure has left the device's context unusable.
    """

    kind: str
    reason: str
    status: Status = "failed"
    last: bool = False


Reply = Hello | Pong | Place | Done | Empty | Checked | Timed | Failure


_requests = msgspec.json.Decoder(Request)
_replies = msgspec.json.Decoder(Reply)


def encode(message: Request | Reply) -> bytes:
    """A message as JSON."""
    return msgspec.json.encode(message)


def decode_request(data: bytes) -> Request:
    """Read a request. Raises msgspec.MsgspecError for an unknown type, a missing field or one too many."""
    request: Request = _requests.decode(data)
    return request


def decode_reply(data: bytes) -> Reply:
    """Read a reply. Raises msgspec.MsgspecError for an unknown type, a missing field or one too many."""
    reply: Reply = _replies.decode(data)
    return reply


def ends_a_turn(request: Request, *, unloads: bool) -> bool:
    """Whether another candidate may follow after a request. Then what this one left behind is looked for now.

    `unloads` says whether a candidate is unloaded after its screen. Then the search comes after the unloading.
    """
    if isinstance(request, Verify):
        return request.quick or not unloads
    return (isinstance(request, Screen) and not unloads) or isinstance(request, Turn | Unload)


def is_fault(reply: Reply) -> bool:
    """Whether a reply says that a candidate does wrong."""
    return isinstance(reply, Checked | Timed) and reply.status not in ("ok", "skipped")


def failure_of(reply: Reply) -> tuple[Status, str]:
    """The status and the reason of a reply that is not the one that was asked for."""
    if isinstance(reply, Failure | Checked | Timed):
        return reply.status, reply.reason
    return "failed", f"{WORKER_FAULT}an answer of the wrong kind: {reply!r:.200}"
