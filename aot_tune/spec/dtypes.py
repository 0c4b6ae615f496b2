"""Element types: names as the field writes them, with their DLPack codes and C names."""

from __future__ import annotations

from dataclasses import dataclass

from aot_tune.support.errors import SpecError, did_you_mean

__all__ = ["DTYPES", "DType", "dtype"]


@dataclass(frozen=True)
class DType:
    """One element type. `code` and `bits` are DLPack's; `c` and `cuda` are its names in the two languages.

    Floats of 16 bits have names of our own in C++, see `render.narrow_floats`. `numpy` is empty where numpy has no such
    type, `cuda` where kernels for GPUs have no use for it.
    """

    name: str
    code: int
    bits: int
    c: str
    numpy: str
    cuda: str = ""

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.bits // 8

    @property
    def fraction(self) -> int:
        """Bits of the fraction of a floating dtype, without the one that is not stored; 0 of others."""
        return {"bf16": 7, "f16": 10, "f32": 23, "f64": 52}.get(self.name, 0)

    @property
    def torch(self) -> str:
        """The attribute of the module torch."""
        return "bfloat16" if self.name == "bf16" else self.numpy


# DLDataTypeCode of DLPack 1.x: 0 int, 1 uint, 2 float, 4 bfloat, 6 bool.
DTYPES: dict[str, DType] = {
    d.name: d
    for d in (
        DType("f32", 2, 32, "float", "float32", "float"),
        DType("f64", 2, 64, "double", "float64", "double"),
        DType("f16", 2, 16, "aot_tune_f16", "float16", "__half"),
        DType("bf16", 4, 16, "aot_tune_bf16", "", "__nv_bfloat16"),
        DType("i8", 0, 8, "int8_t", "int8", "int8_t"),
        DType("i32", 0, 32, "int32_t", "int32", "int32_t"),
        DType("i64", 0, 64, "int64_t", "int64", "int64_t"),
        DType("u8", 1, 8, "uint8_t", "uint8", "uint8_t"),
        DType("bool", 6, 8, "bool", "bool", "bool"),
    )
}


def dtype(name: str, where: str = "") -> DType:
    """Look up an element type by name.

    Raises:
        SpecError: when there is no such type; `where` names the place in the message.
    """
    try:
        return DTYPES[name]
    except KeyError:
        place = f"{where}: " if where else ""
        raise SpecError(f"{place}unknown dtype {name!r}", fix=did_you_mean(name, DTYPES)) from None
