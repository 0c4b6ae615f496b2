"""Objects that claim to be tensors."""

from __future__ import annotations

from typing import Any

import torch


class NotATensor(torch.Tensor):
    """A subclass without memory of its own, as wrappers of several tensors are."""

    @staticmethod
    def __new__(cls, like: torch.Tensor) -> NotATensor:
        return torch.Tensor._make_wrapper_subclass(
            cls, like.shape, strides=like.stride(), dtype=like.dtype, device=like.device
        )

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise NotImplementedError(f"{func} of a wrapper")


class Raises:
    """An object that claims to be a tensor and is none."""

    def __dlpack__(self, **_: Any) -> Any:
        raise RuntimeError("nothing to export")

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


class NoCapsule:
    """An object that exports something else than a tensor."""

    def __dlpack__(self, **_: Any) -> Any:
        return "a tensor"

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)
