"""Tensors that are read through DLPack alone."""

from __future__ import annotations

import numpy as np

Array = np.ndarray


class Wrapped:
    """Has nothing but __dlpack__."""

    def __init__(self, array: Array) -> None:
        self.array = array

    def __dlpack__(self, **options: object) -> object:
        return self.array.__dlpack__(**options)


class Old:
    """A producer from before DLPack 1.0: no max_version, an unversioned capsule."""

    def __init__(self, array: Array) -> None:
        self.array = array

    def __dlpack__(self, *, stream: object = None) -> object:
        return self.array.__dlpack__(stream=stream)
