"""Element types: their usual names, with their DLPack codes and their names in C."""

from __future__ import annotations

from dataclasses import dataclass

from aot_tune.support.errors import SpecError, did_you_mean


@dataclass(frozen=True)
class DType:
    """One element type. `code` and `bits` are DLPack's. `c` and `cuda` are its names in the two languages.

    Floats of 8 and 16 bits have our own names in C++, see `render/cpp`. `numpy` is empty if numpy has no such
    type. Then arrays hold its bits as unsigned integers, see `bits_as`.
    """

    name: str
    code: int
    bits: int
    c: str
    numpy: str
    cuda: str

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.bits // 8

    @property
    def fraction(self) -> int:
        """Stored bits of the fraction of a floating dtype; 0 for other dtypes."""
        return _FRACTIONS.get(self.name, 0)

    @property
    def is_floating(self) -> bool:
        """Whether it is a floating dtype."""
        return self.fraction > 0

    @property
    def limits(self) -> tuple[int, int]:
        """The least and the largest number of an integer dtype, or of bool."""
        if self.name == "bool":
            return 0, 1
        return (0, 2**self.bits - 1) if self.code == 1 else (-(2 ** (self.bits - 1)), 2 ** (self.bits - 1) - 1)

    @property
    def saturates(self) -> bool:
        """Whether too large values, infinities included, are stored as the largest value: true for floats of 8 bits."""
        return self.is_floating and self.bits == 8

    @property
    def torch(self) -> str:
        """The dtype's name in the module torch."""
        return _TORCH.get(self.name, self.numpy)

    @property
    def bits_as(self) -> str:
        """The numpy dtype of arrays of its elements: its own, or unsigned integers if numpy has none."""
        return self.numpy or f"uint{self.bits}"


_FRACTIONS = {"f8e5m2": 2, "f8e4m3": 3, "bf16": 7, "f16": 10, "f32": 23, "f64": 52}
_TORCH = {"bf16": "bfloat16", "f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2"}

# DLDataTypeCode of DLPack 1.1: 0 int, 1 uint, 2 float, 4 bfloat, 6 bool, 10 float8_e4m3fn, 12 float8_e5m2.
DTYPES: dict[str, DType] = {
    d.name: d
    for d in (
        DType("f32", 2, 32, "float", "float32", "float"),
        DType("f64", 2, 64, "double", "float64", "double"),
        DType("f16", 2, 16, "aot_tune_f16", "float16", "__half"),
        DType("bf16", 4, 16, "aot_tune_bf16", "", "__nv_bfloat16"),
        DType("f8e4m3", 10, 8, "aot_tune_f8e4m3", "", "__nv_fp8_e4m3"),
        DType("f8e5m2", 12, 8, "aot_tune_f8e5m2", "", "__nv_fp8_e5m2"),
        DType("i8", 0, 8, "int8_t", "int8", "int8_t"),
        DType("i16", 0, 16, "int16_t", "int16", "int16_t"),
        DType("i32", 0, 32, "int32_t", "int32", "int32_t"),
        DType("i64", 0, 64, "int64_t", "int64", "int64_t"),
        DType("u8", 1, 8, "uint8_t", "uint8", "uint8_t"),
        DType("u16", 1, 16, "uint16_t", "uint16", "uint16_t"),
        DType("u32", 1, 32, "uint32_t", "uint32", "uint32_t"),
        DType("u64", 1, 64, "uint64_t", "uint64", "uint64_t"),
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
        prefix = f"{where}: " if where else ""
        raise SpecError(f"{prefix}unknown dtype {name!r}", fix=did_you_mean(name, DTYPES)) from None
