"""Tensors that are read through DLPack alone."""

import ctypes
from typing import ClassVar

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


class Freed(Wrapped):
    """What frees its capsules is Python code, as with NVIDIA Warp; `kept` is what was not freed."""

    kept: ClassVar[dict[int, object]] = {}

    def __dlpack__(self, **_options: object) -> object:
        given = self.array.__dlpack__()
        pointer = _capsules.PyCapsule_GetPointer(given, b"dltensor")
        self.kept[pointer] = given
        return _capsules.PyCapsule_New(pointer, b"dltensor", ctypes.cast(_free, ctypes.c_void_p))


_capsules = ctypes.PyDLL(None)
_capsules.PyCapsule_GetPointer.restype = ctypes.c_void_p
_capsules.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_capsules.PyCapsule_New.restype = ctypes.py_object
_capsules.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _free(capsule: int) -> None:
    del Freed.kept[_capsules.PyCapsule_GetPointer(ctypes.cast(capsule, ctypes.py_object), b"dltensor")]


class Deleted:
    """An array of JAX whose memory was given up."""

    def is_deleted(self) -> bool:
        return True

    def __dlpack__(self, **_options: object) -> object:
        raise TypeError("object of type 'NoneType' has no len()")
