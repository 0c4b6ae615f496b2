"""Stub of the module ops. Written by aot_tune."""

from typing import Any, Literal

# Anything that DLPack reads: numpy.ndarray, torch.Tensor, ...
Tensor = Any

operators: tuple[str, ...]

class Error(Exception): ...
class ArgumentTypeError(Error, TypeError): ...
class ArgumentValueError(Error, ValueError): ...
class CallError(Error, RuntimeError): ...

def gemm(a: Tensor, b: Tensor, bias: Tensor | None = None, residual: Tensor | None = None, *, activation: Literal["none", "relu"] = "none", out: Tensor | None = None, stream: Any = None, workspace: Tensor | None = None) -> Any:
    """out = activation(a @ b + bias) + residual.

    a: f32 [M, K].
    b: f32 [K, N].
    bias: f32 [N], may be left out.
    residual: f32 [M, N], may be left out.
    out: f32 [M, N], made when not passed.
    activation: one of none, relu.
    stream: of the GPU, as a number or an object of a framework; the framework's current one when not passed.
    workspace: memory of the device for the call, any tensor; the library's own when not passed.

    Returns the output.
    """

def rms_norm(x: Tensor, weight: Tensor, residual: Tensor | None = None, *, eps: float = 1e-05, out: Tensor | None = None, residual_out: Tensor | bool | None = None, stream: Any = None, workspace: Tensor | None = None) -> Any:
    """out = (x + residual) / rms(x + residual) * weight.

    x: f32 [M, N].
    weight: f32 [N].
    residual: f32 [M, N], may be left out.
    out: f32 [M, N], made when not passed.
    residual_out: f32 [M, N], written when passed; True makes a new one.
    eps: a number.
    stream: of the GPU, as a number or an object of a framework; the framework's current one when not passed.
    workspace: memory of the device for the call, any tensor; the library's own when not passed.

    Returns the output; a tuple when several are written.
    """

def is_tuned(operator: str, *tensors: Tensor, **tensors_or_dims: Any) -> bool: ...
def explain(operator: str, *tensors: Tensor, **tensors_or_dims: Any) -> dict[str, Any]: ...
def manifest() -> dict[str, Any]: ...
def preload(device: Any) -> None: ...
def signatures() -> dict[str, Any]: ...
