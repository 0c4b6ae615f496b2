"""Stub of the module cuda_ops. Written by aot_tune."""

from typing import Any, Literal, Protocol, TypeAlias, TypeVar, overload, type_check_only

@type_check_only
class Tensor(Protocol):
    """What DLPack reads: numpy.ndarray, torch.Tensor, ... It only exists for annotations, under TYPE_CHECKING."""

    def __dlpack__(self, *, stream: Any = ...) -> Any: ...
    def __dlpack_device__(self) -> tuple[Any, Any]: ...

@type_check_only
class _TorchStream(Protocol):
    @property
    def cuda_stream(self) -> int: ...

@type_check_only
class _CupyStream(Protocol):
    @property
    def ptr(self) -> int: ...

@type_check_only
class _CudaStream(Protocol):
    def __cuda_stream__(self) -> tuple[int, int]: ...

_Stream: TypeAlias = int | _TorchStream | _CupyStream | _CudaStream | None
# The type of the first tensor, whose framework makes the results. A subclass of its tensors gets a plain tensor.
_T = TypeVar("_T", bound=Tensor)

operators: tuple[Literal["scale"]]

class Error(Exception): ...
class ArgumentTypeError(Error, TypeError): ...
class ArgumentValueError(Error, ValueError): ...
class CallError(Error, RuntimeError): ...

def scale(
    x: _T,
    bias: Tensor | None = None,
    *,
    factor: float = 1.0,
    out: _T | None = None,
    stream: _Stream = None,
    workspace: Tensor | None = None,
) -> _T:
    """out = x * factor.

    x: T [N].
    bias: T [N], may be left out.
    out: T [N], made when not passed.
    T: f32 or bf16, the same for all.
    factor: a number.
    stream: of the GPU, as a number or an object of a framework; the framework's current one when not passed.
    workspace: memory of the device for the call, any tensor; the library's own when not passed.

    Returns the output.
    """

def is_tuned(operator: str, /, *tensors: Tensor | None, **tensors_or_dims: Any) -> bool: ...
def explain(operator: str, /, *tensors: Tensor | None, **tensors_or_dims: Any) -> dict[str, Any]: ...
def manifest() -> dict[str, Any]: ...
def preload(device: Any, /) -> None: ...  # 'cuda:0', 0, a torch.device
def signatures() -> dict[str, Any]: ...
def set_num_threads(threads: int, /) -> None: ...
def get_num_threads() -> int: ...
__tables__: Any
