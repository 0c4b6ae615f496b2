"""What a device offers to the session of a worker: memory with guards, calls and their times, true values.

And the tensors of one call in that memory: what it reads, writes, and may not touch.

There is one engine for each family. Storages are bytes: a numpy array on the host, and a tensor of torch on a GPU.
"""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, cached_property
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from aot_tune.bench.protocol import messages
from aot_tune.bench.protocol.measurement_records import Check, Policy
from aot_tune.bench.worker.comparison import SurveyedOutput
from aot_tune.bench.worker.inputs import Strided, attribute_indices, layout, scalar_values, seen_by
from aot_tune.bench.worker.loaded_objects import HOST, Arguments
from aot_tune.bench.worker.stored_elements import epsilon_of, stored_as
from aot_tune.spec import DEFAULT_ALIGNMENT, DType, Generator, Integers, Operator, Sparse, Tensor

CANARY = 0xA5
"""The contents of guard zones."""

Placement = Literal["inside", "end", "start"]
"""Which side of a tensor's memory touches a page that no one may access: neither, its end, or its start."""

Call = Callable[[], int | None]
"""Makes a call. It returns what the candidate's function does: an error unless it is 0. None is no error."""

T = TypeVar("T")

Undo = Callable[[], None]
"""Writes bytes again, such as those that a call has changed."""


Places = Mapping[str, Sequence[tuple[slice, slice]]]
"""Pairs of different elements of inputs, by name: where the bytes of each are. No element is in two pairs."""


class FaultError(Exception):
    """The device is unusable from now on. `by_kernel` says that a kernel is at fault, and not the machine."""

    def __init__(self, text: str, *, by_kernel: bool) -> None:
        super().__init__(text)
        self.by_kernel = by_kernel


class UnusableError(Exception):
    """A baseline cannot run here. The text says why."""


class Want(NamedTuple):
    """Storage of `size` bytes. The address of byte `origin` (a tensor's first element) is aligned.

    An `alignment` is kept exactly: with 16, the address is 16 times an odd number. 0 means what an allocator gives.
    `number` is the tensor's among those of the operator. Tensors of different numbers begin at different places in a
    page.
    """

    name: str
    size: int
    origin: int = 0
    alignment: int = 0
    number: int = 0


class Piece(NamedTuple):
    """Part of an arena."""

    address: int
    size: int
    storage: Any


class Arena(Protocol):
    """Memory with a guard zone before, between and after its pieces. It is given back when nothing refers to it."""

    @property
    def pieces(self) -> Mapping[str, Piece]:
        """The parts, by name."""

    @property
    def bytes(self) -> int:
        """How many bytes it takes."""

    def heal(self) -> None:
        """Write the guard zones."""

    def damaged(self) -> Any:
        """Whether a guard zone was written to, for `Engine.answers`. Nothing waits for the answer."""

    def damage(self) -> tuple[str, str]:
        """The name of the piece whose guard was written to, and where. Two empty texts if there is none."""


class Expected(Protocol):
    """True values of one output, and how far off a result may be."""

    @property
    def tensor(self) -> Tensor:
        """The output."""

    @property
    def undefined(self) -> bool:
        """Whether the definition does not say what is right."""

    @property
    def bytes(self) -> int:
        """The memory that it takes."""

    def worst(self, got: Any) -> Any:
        """The largest error in tolerances, for `Engine.answers`. NaN says that a closer look is needed."""

    def judge(self, got: Any) -> tuple[str, float]:
        """What is wrong with the worst element, or empty, and the largest error in tolerances."""


class Turns(Protocol):
    """Times calls that take turns."""

    @property
    def note(self) -> str:
        """What is odd about how they are timed."""

    def turn(self, calls: int, warm: int, *, clock: bool = False) -> messages.Timed:
        """One sample of a race, see `messages.Turn`."""

    def close(self) -> None:
        """Release what it holds."""


class Timer(Turns, Protocol):
    """Times a candidate's calls."""

    @property
    def made(self) -> int:
        """How many calls there were."""

    def screen(self, best_ns: float | None) -> messages.Timed:
        """The samples of a screen. The status is not ok if they do not cover the work."""


class Engine(ABC):
    """One device, as a worker uses it.

    Args:
        policy: how to measure.
        host_memory: bytes of the host's memory that a candidate's work may take beyond what is held before.
        kept_memory: bytes of the buffers that are kept while they are not in use.
        least_ns: differences between calls that count as noise.
    """

    on_host: bool
    """Candidates compute on the host: in the thread that calls them, and in the process's memory."""
    at_once: bool
    """Calls of a rotation are played together. Each has its own tensors, aligned as an allocator aligns them."""
    placements: tuple[Placement, ...]
    """The placements in which a candidate is verified."""
    kept_results: int
    """The right outputs of so many candidates are kept, to compare with after timed calls."""
    fresh_ns: int
    """ns of the calls of a play that tells whether a candidate is honest."""
    fresh_calls: int
    """The most calls of such a play."""

    def __init__(self, policy: Policy, host_memory: int, kept_memory: int, least_ns: float) -> None:
        self.policy, self.host_memory, self.kept_memory, self.least_ns = policy, host_memory, kept_memory, least_ns

    @property
    @abstractmethod
    def last_cache(self) -> int:
        """Bytes of the last cache, or 0 if nothing tells."""

    @property
    def out_of_memory(self) -> tuple[type[Exception], ...]:
        """Errors after which buffers are released, and a request is tried once more."""
        return ()

    @property
    def dlpack(self) -> tuple[int, int]:
        """DLPack's type and number of the device."""
        return HOST

    @property
    def stream(self) -> int | None:
        """The stream that candidates are passed."""
        return None

    @contextmanager
    def acting(self, request: messages.Request) -> Iterator[None]:  # noqa: ARG002
        """The block carries out a request. Then all work is done. Raises FaultError when the device is unusable."""
        yield

    def check(self) -> None:  # noqa: B027
        """Wait until all work is done. Raises FaultError when the device is unusable."""

    @contextmanager
    def oddly(self, calls: CallSet, *, locked: bool, threads: int) -> Iterator[None]:  # noqa: ARG002
        """In the block, inputs of a call are `locked` against writing, and OpenMP has other `threads` unless 0."""
        yield

    def callers(self) -> list[tuple[int | None, Callable[[], AbstractContextManager[Any]]]]:
        """Streams of two callers, and what each of them is in while it calls. The first has the `stream`."""
        return [(self.stream, nullcontext)] * 2

    @abstractmethod
    def burden(self) -> Callable[[], None]:
        """Work beside a candidate, which takes about a millisecond each time."""

    @contextmanager
    def busy(self) -> Iterator[None]:
        """In the block, the device has other work too."""
        work, over = self.burden(), threading.Event()

        def go_on() -> None:
            while not over.is_set():
                work()

        thread = threading.Thread(target=go_on)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def forget(self) -> None:  # noqa: B027
        """Clear an error that a failed launch left behind."""

    @property
    def edged(self) -> bool:
        """Whether tensors can have the placement `end`, although it is not one of `placements`."""
        return False

    def watch(self) -> None:  # noqa: B027
        """From now on, allocate so that a sanitizer sees each access that is outside of a tensor."""

    def free(self) -> None:  # noqa: B027
        """Give back memory that is kept for later."""

    def get_ready(self) -> None:  # noqa: B027
        """Find out, before any candidate is timed, what all times need."""

    def hopeless_ns(self, best_ns: float) -> float:  # noqa: ARG002
        """A candidate that takes longer than this each time it is verified need not be timed in another way."""
        return float("inf")

    def probe(self, cold: Sequence[Any]) -> tuple[str, str]:  # noqa: ARG002
        """What is wrong with a rotation of the storages of cold tensors, and a line to log once. Empty if nothing."""
        return "", ""

    @abstractmethod
    def allocate(self, wants: Sequence[Want], placement: Placement = "inside") -> Arena:
        """Memory with guards. Guards are written, and the pieces hold anything."""

    def workspace(self, size: int, placement: Placement) -> Arena | None:
        """Memory whose only piece is called `workspace`, or None for 0 bytes."""
        return self.allocate([Want("workspace", size, alignment=0)], placement) if size else None

    def second_workspace(self, size: int, placement: Placement) -> Arena | None:
        """One that another caller uses at the same time."""
        return Engine.workspace(self, size, placement)

    @abstractmethod
    def fill(self, storage: Any, value: int, width: int = 1) -> None:
        """Fill a storage with one byte, or with the `width` bytes of a pattern. 0xFF is NaN in every floating type."""

    @abstractmethod
    def writing(self, pairs: Sequence[tuple[Any, Any]]) -> Undo:
        """A function that writes the bytes of the second storage of each pair to the first."""

    @abstractmethod
    def clone(self, storage: Any) -> Any:
        """A copy of a storage."""

    @abstractmethod
    def beside(self, storage: Any) -> Any:
        """As many bytes as a storage has, from where it is written as fast as from any other place."""

    @abstractmethod
    def differ(self, one: Any, other: Any) -> Any:
        """Whether two storages of the same size differ, for `answers`."""

    @abstractmethod
    def places(self, mask: Any) -> Any:
        """The indices at which a mask is true."""

    @abstractmethod
    def answers(self, asked: Sequence[Any]) -> list[float]:
        """What all questions are answered with, at once."""

    @abstractmethod
    def array(self, tensor: Tensor, strided: Strided, storage: Any) -> Any:
        """A tensor in a storage. Numpy's arrays hold what `stored_elements` says."""

    @abstractmethod
    def values(self, tensor: Tensor, array: Any, *, wide: bool) -> Any:
        """A copy of a tensor's values, in float32 if they are to be `wide`."""

    @abstractmethod
    def reverse(self, tensor: Tensor, storage: Any, source: Any) -> bool:
        """Write the elements of a source in reverse order. Returns whether the bytes differ from the source's."""

    @abstractmethod
    def gap(self, strided: Strided, width: int, storage: Any) -> Any:
        """Which bytes of a storage belong to no element of `width` bytes."""

    @abstractmethod
    def draw(self, operator: Operator, check: Check) -> dict[str, Any]:
        """The storages of the inputs that are present. The operator is concrete."""

    @abstractmethod
    def expected(self, operator: Operator, check: Check, folder: Path, inputs: Mapping[str, Any]) -> list[Expected]:
        """True values of all outputs that are present. `inputs` are what `draw` gave."""

    @abstractmethod
    def write_reference(self, operator: Operator, check: Check, folder: Path) -> str:
        """Compute the reference into `folder`, in one step. Returns what the operator's author should know, or ""."""

    @abstractmethod
    def play(self, batch: Sequence[Call]) -> float:
        """ns of all calls in a row. Raises LaunchError when a call returns an error."""

    def chains(
        self,
        before: Sequence[tuple[Any, Any]],  # noqa: ARG002
        call: Call,  # noqa: ARG002
        after: Sequence[Sequence[tuple[Any, Any]]],  # noqa: ARG002
    ) -> Iterator[tuple[str, Callable[[], None]]]:
        """Ways to play a call between other kernels, and their names. None where a call is done when it returns.

        The kernel before it may still write `before`, the second storage of each pair to the first, when the call
        starts. Those after it write `after`, one after the other.
        """
        yield from ()

    @abstractmethod
    def put_back(self, storage: Any, source: Any) -> Undo:
        """A function that writes again what a call has changed of a storage, see `put_back` of a family."""

    @abstractmethod
    def timer(self, sets: Sequence[CallSet], launch: Callable[..., int], arguments: Sequence[tuple[Any, ...]]) -> Timer:
        """A clock for a candidate's calls, with arguments for each call set. Raises LaunchError when one fails."""

    def alone(self, timer: Any, make: Callable[[], tuple[T, Any]]) -> tuple[T, Any] | None:  # noqa: ARG002
        """What `make` makes for calls with one thread, if more gain too little for what they risk. `timer` times those.

        What it makes depends on the present number of threads.
        """
        return None

    @abstractmethod
    def framework(self, check: Check, sets: Sequence[CallSet]) -> AbstractContextManager[None]:
        """In the block, a framework computes as a problem wants it. Raises UnusableError when it cannot."""

    @abstractmethod
    def handed_on(self, module: ModuleType, tensor: Tensor, strided: Strided, storage: Any) -> Any:
        """A framework's tensor in the same memory. Raises AttributeError when it takes none, or lacks the dtype."""

    @abstractmethod
    def framework_timer(self, functions: Sequence[Callable[[], object]], sets: Sequence[CallSet]) -> Turns:
        """A clock for a framework's functions, one for each call set."""


def screen(
    samples: list[float],
    sample_ns: float,
    take: Callable[[int], list[float]],
    policy: Policy,
    best_ns: float | None,
    overhead: float = 0.0,
) -> list[float]:
    """The first samples of a screen, and more of them unless all of these are slow.

    Args:
        samples: ns per call. They include the `overhead`, but `best_ns` does not.
        sample_ns: how long a sample lasts.
        take: takes so many more samples.
    """
    if best_ns is not None and min(samples) - overhead > policy.screen_stop * best_ns:
        return samples
    more = min(int(policy.screen_ns / max(sample_ns, 1.0)), policy.screen_samples) - len(samples)
    return samples + take(more) if more > 0 else samples


class CallSet:
    """The tensors of one call. Inputs are copied from `pristine`, and outputs are poisoned. The operator is concrete.

    `storages` are the bytes of each tensor that is present, and `layouts` where its elements are in them. `sources` are
    the contents to write, before a call, into tensors that it reads and writes.

    Args:
        natural: tensors are aligned as an allocator aligns them, unless the problem says less. Without it, they are
            aligned exactly as the problem says.
        share: a call set whose tensors are used, except those that are cold. If calls are played at once, those that
            are written in place are not shared either.
        aliases: the outputs that use an input's memory.
    """

    def __init__(
        self,
        engine: Engine,
        operator: Operator,
        check: Check,
        pristine: dict[str, Any],
        placement: Placement = "inside",
        *,
        natural: bool = False,
        share: CallSet | None = None,
        aliases: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.operator, self.pristine, self.placement = operator, pristine, placement
        self._engine, self._check, self._aliases = engine, check, aliases
        present = [t for t in operator.tensors if operator.is_present(check.problem, t)]
        self.layouts: dict[str, Strided] = {t.name: layout(operator, check, t) for t in present}
        self.sources = {t.name: pristine[t.name] for t in present if t.inout}
        self.sources |= {output: pristine[name] for output, name in aliases.items()}
        own = [
            t for t in present if (share is None or t.cold or (t.inout and engine.at_once)) and t.name not in aliases
        ]
        self.arena = engine.allocate([self._want(t, natural) for t in own], placement)
        pieces = dict(self.arena.pieces)
        if share is not None:
            pieces = {**share.pieces, **pieces}
        pieces |= {output: pieces[name] for output, name in aliases.items()}
        self.pieces: dict[str, Piece] = pieces
        self.storages: dict[str, Any] = {n: p.storage for n, p in pieces.items()}
        for tensor in own:
            if tensor.output:
                engine.fill(self.storages[tensor.name], 0xFF)
            else:
                engine.writing([(self.storages[tensor.name], pristine[tensor.name])])()
        self._gaps = {t.name: self._gap(t) for t in self.outputs() if t in own or t.name in aliases}
        self.arguments = self._arguments(check)

    def _arguments(self, check: Check) -> Arguments:
        return Arguments(
            self.operator,
            {
                n: self.pieces[n].address + p.first() * self.operator.tensor(n).dtype.itemsize
                for n, p in self.layouts.items()
            },
            {n: p.shape for n, p in self.layouts.items()},
            {n: p.strides for n, p in self.layouts.items()},
            scalar_values(self.operator, check),
            attribute_indices(self.operator, check),
            self._engine.dlpack,
        )

    @cached_property
    def other_arguments(self) -> Arguments:
        """The arguments with another value of each scalar that has one."""
        others = {s.name: s.another for s in self.operator.scalars if s.another is not None}
        if not others.keys() - self._check.scalars.keys():
            return self.arguments
        return self._arguments(msgspec.structs.replace(self._check, scalars={**others, **self._check.scalars}))

    def _want(self, tensor: Tensor, natural: bool) -> Want:
        strided, width = self.layouts[tensor.name], tensor.dtype.itemsize
        alignment = self._check.problem.alignment.get(tensor.name, 0 if natural else DEFAULT_ALIGNMENT)
        number = [t.name for t in self.operator.tensors].index(tensor.name)
        return Want(tensor.name, strided.extent() * width, strided.first() * width, alignment, number)

    def _gap(self, tensor: Tensor) -> Any | None:
        """Which bytes of an output's storage belong to no element, or None when all do."""
        strided, storage, width = self.layouts[tensor.name], self.storages[tensor.name], tensor.dtype.itemsize
        if math.prod(strided.shape) * width == len(storage):
            return None
        return self._engine.gap(strided, width, storage)

    def outputs(self) -> list[Tensor]:
        """The outputs that are present."""
        return [t for t in self.operator.outputs if t.name in self.layouts]

    def inputs(self) -> list[Tensor]:
        """The inputs that are present."""
        return [t for t in self.operator.inputs if t.name in self.layouts]

    def made(self) -> list[Tensor]:
        """The outputs that hold nothing before a call."""
        return [t for t in self.outputs() if t.name not in self.sources]

    def kept(self) -> list[Tensor]:
        """The inputs that no call may write to."""
        return [t for t in self.inputs() if not t.inout and t.name not in self._aliases.values()]

    def cold(self, *, whole: bool = False) -> list[Any]:
        """Storages of what must not be in the caches when a call begins. With `whole`, everything must not."""
        return [self.storages[t.name] for t in (*self.inputs(), *self.made()) if whole or t.cold]

    def array(self, tensor: Tensor, bits: Mapping[str, Any] = MappingProxyType({})) -> Any:
        """A tensor of the call, or of earlier `bits` of it, see `Engine.array`."""
        storage = bits.get(tensor.name, self.storages[tensor.name])
        return self._engine.array(tensor, self.layouts[tensor.name], storage)

    def poison(self, turn: int = 0, *, renewed: bool = False) -> None:
        """Fill all outputs with NaN, or in other turns with other things, see `_poison_of`.

        Reset the tensors that are read and written, unless their contents were `renewed`.
        """
        for tensor in self.made():
            storage, gap = self.storages[tensor.name], self._gaps.get(tensor.name)
            self._engine.fill(storage, _poison_of(tensor.dtype, turn), tensor.dtype.itemsize)
            if turn and gap is not None:  # what belongs to no element is equal in all runs
                storage[gap] = 0xFF
        if not renewed:
            self.undo()

    def undo(self) -> None:
        """Reset the tensors that are read and written to what they held before any call."""
        self._engine.writing([(self.storages[name], source) for name, source in self.sources.items()])()

    def renew(self) -> bool:
        """Write other contents to the same memory, as legal as the inputs' own. Returns whether there are any."""
        inputs = exchangeable(self.operator, self.inputs())
        differs = [self._engine.reverse(t, self.storages[t.name], self.pristine[t.name]) for t in inputs]
        return any(differs)

    def swap(self, places: Places, *, back: bool = False) -> bool:
        """Have elements of inputs change places, or write them `back`. Returns whether a call is another one."""
        for name, pairs in places.items():
            storage, pristine = self.storages[name], self.pristine[name]
            for one, other in pairs:
                mine, its = (one, other) if back else (other, one)
                self._engine.writing([(storage[one], pristine[mine]), (storage[other], pristine[its])])()
        return bool(places) or self.other_arguments is not self.arguments

    def put_back(self) -> None:
        """Write inputs again."""
        self._engine.writing([(self.storages[t.name], self.pristine[t.name]) for t in self.inputs()])()

    def restore(self) -> None:
        """Write inputs and guard zones again, after a candidate that wrote to them."""
        self.put_back()
        self.arena.heal()

    def changed(self) -> list[tuple[str, Any]]:
        """For each thing that no call may write to, whether it was written to. Guard zones come first."""
        flags = [("", self.arena.damaged())]
        for tensor in self.kept():
            flags.append((tensor.name, self._engine.differ(self.storages[tensor.name], self.pristine[tensor.name])))
        flags += [(n, self._written(n, g).any()) for n, g in self._gaps.items() if g is not None]
        return flags

    def _written(self, name: str, gap: Any) -> Any:
        """Which bytes of an output's gap differ from those before the call."""
        source = self.sources.get(name)
        return (self.storages[name] != (0xFF if source is None else source)) & gap

    def describe(self, name: str) -> str:
        """What is wrong with the thing that `changed` names."""
        if not name:
            piece, where = self.arena.damage()
            return f"oob: guard zone of {piece!r}: {where}"
        gap = self._gaps.get(name)
        if gap is not None:
            hit = self._engine.places(self._written(name, gap))
            return f"oob: {len(hit)} bytes between the rows of {name!r} were written, first {int(hit[0])}"
        first = self._engine.places(self.storages[name] != self.pristine[name])[0]
        return f"input {name!r} was changed, first at byte {int(first)}"

    def bits(self) -> dict[str, Any]:
        """Copies of the outputs' bytes, with the gaps between their rows, by name."""
        return {t.name: self._engine.clone(self.storages[t.name]) for t in self.outputs()}

    def differs(self, bits: Mapping[str, Any]) -> list[Any]:
        """For each output, whether its bytes differ from these."""
        return [self._engine.differ(self.storages[n], b) for n, b in bits.items()]

    def unsteady(self, bits: Mapping[str, Any]) -> str:
        """Where outputs differ from those of an earlier run, if the operator is deterministic. Otherwise empty."""
        for name, before in bits.items() if self.operator.deterministic else ():
            hit = self._engine.places(self.storages[name] != before)
            if len(hit):
                return f"not deterministic: {len(hit)} bytes of {name!r} differ between two runs, first {int(hit[0])}"
        return ""

    def results(self, bits: Mapping[str, Any] = MappingProxyType({})) -> dict[str, SurveyedOutput]:
        """Copies of the results, or of those in `bits`, in float32 if their own dtype is narrower."""
        results = {}
        for tensor in self.outputs():
            epsilon = epsilon_of(tensor.dtype)
            wide = epsilon is not None and tensor.dtype.itemsize < 4
            results[tensor.name] = SurveyedOutput(
                self._engine.values(tensor, self.array(tensor, bits), wide=wide), epsilon, self.operator.step(tensor)
            )
        return results

    @property
    def bytes(self) -> int:
        """Bytes of the memory that it does not share."""
        return self.arena.bytes


@cache
def _poison_of(dtype: DType, turn: int) -> int:
    """The bits of the elements that outputs hold before a call: NaN, infinities and a usual number, in turn.

    In dtypes without these, they are -1, the largest, the least and any number. A kernel that takes the larger of its
    result and what was there hides NaN.
    """
    kind = turn % 4
    if kind == 0:
        return (1 << dtype.bits) - 1
    if dtype.is_floating:
        pattern: NDArray[Any] = stored_as(dtype, np.array([(math.inf, -math.inf, -0.71875)[kind - 1]]))
    else:
        pattern = np.array([(*reversed(dtype.limits), 77)[kind - 1]]).astype(dtype.bits_as)
    return int(pattern.view(f"u{dtype.itemsize}")[0])


def exchangeable(operator: Operator, inputs: Iterable[Tensor]) -> list[Tensor]:
    """Those of some inputs whose elements can change places: no author's function has seen them, no order matters."""
    seen = {t.name for later in operator.inputs for t in seen_by(operator, later)}
    return [t for t in inputs if isinstance(t.values, (Generator, Integers, Sparse)) and t.name not in seen]
