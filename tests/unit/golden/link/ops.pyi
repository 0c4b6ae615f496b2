"""Stub of the module ops. Written by aot_tune."""

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

operators: tuple[Literal["gemm"], Literal["rms_norm"]]

class Error(Exception): ...
class ArgumentTypeError(Error, TypeError): ...
class ArgumentValueError(Error, ValueError): ...
class CallError(Error, RuntimeError): ...

def gemm(
    a: _T,
    b: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    *,
    activation: Literal["none", "relu"] = "none",
    out: _T | None = None,
    stream: _Stream = None,
    workspace: Tensor | None = None,
) -> _T:
    """out = activation(a @ b + bias) + residual.

    a: f32 [M, K].
    b: f32 [K, N].
    bias: f32 [N], may be left out.
    residual: f32 [M, N], may be left out.
    out: f32 [M, N], made when not passed.
    M: stands for any number of leading dims, the same of a, residual, out.
    activation: one of none, relu.
    stream: of the GPU, as a number or an object of a framework; the framework's current one when not passed.
    workspace: memory of the device for the call, any tensor; the library's own when not passed.

    Returns the output.
    """

@overload
def rms_norm(
    x: _T,
    weight: Tensor,
    residual: Tensor | None = None,
    *,
    eps: float = 1e-05,
    out: _T | None = None,
    residual_out: Literal[False] | None = None,
    stream: _Stream = None,
    workspace: Tensor | None = None,
) -> _T:
    """out = (x + residual) / rms(x + residual) * weight.

    x: f32 [M, N].
    weight: f32 [N].
    residual: f32 [M, N], may be left out.
    out: f32 [M, N], made when not passed.
    residual_out: f32 [M, N], written when passed; True makes a new one.
    M: stands for any number of leading dims, the same of x, residual, out, residual_out.
    eps: a number.
    stream: of the GPU, as a number or an object of a framework; the framework's current one when not passed.
    workspace: memory of the device for the call, any tensor; the library's own when not passed.

    Returns the output; a tuple when several are written.
    """
@overload
def rms_norm(
    x: _T,
    weight: Tensor,
    residual: Tensor | None = None,
    *,
    eps: float = 1e-05,
    out: _T | None = None,
    residual_out: _T | Literal[True],
    stream: _Stream = None,
    workspace: Tensor | None = None,
) -> tuple[_T, _T]: ...

def is_tuned(operator: str, /, *tensors: Tensor | None, **tensors_or_dims: Any) -> bool: ...
def explain(operator: str, /, *tensors: Tensor | None, **tensors_or_dims: Any) -> dict[str, Any]: ...
def manifest() -> dict[str, Any]: ...
def preload(device: Any, /) -> None: ...  # 'cuda:0', 0, a torch.device
def signatures() -> dict[str, Any]: ...
def set_num_threads(threads: int, /) -> None: ...
def get_num_threads() -> int: ...
__tables__: Any
