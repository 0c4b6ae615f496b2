"""Stub of the module cuda_ops. Written by aot_tune."""

from typing import Any, Literal

# Anything that DLPack reads: numpy.ndarray, torch.Tensor, ...
Tensor = Any

operators: tuple[str, ...]

class Error(Exception): ...
class ArgumentTypeError(Error, TypeError): ...
class ArgumentValueError(Error, ValueError): ...
class CallError(Error, RuntimeError): ...

def scale(x: Tensor, bias: Tensor | None = None, *, factor: float = 1.0, out: Tensor | None = None, stream: Any = None, workspace: Tensor | None = None) -> Any:
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

def is_tuned(operator: str, *tensors: Tensor, **tensors_or_dims: Any) -> bool: ...
def explain(operator: str, *tensors: Tensor, **tensors_or_dims: Any) -> dict[str, Any]: ...
def manifest() -> dict[str, Any]: ...
def preload(device: Any) -> None: ...
