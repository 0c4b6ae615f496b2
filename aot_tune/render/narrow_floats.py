"""Floats of 16 and of 8 bits in C++: types of our own: compilers name theirs in different ways, or have none."""

from __future__ import annotations

from collections.abc import Collection
from types import MappingProxyType

__all__ = ["NARROW", "declarations"]

_TYPE = """\
// A float of {bits} of fraction in {width} bits of memory: what is computed with it is float.
struct {name} {{
  static constexpr int {member} = {fraction};
  uint{width}_t bits;

  {name}() = default;
  explicit {name}(float value) {{ *this = value; }}
  {name}& operator=(float value) {{
{hardware_narrow}    bits = static_cast<uint{width}_t>(narrow<uint32_t>(value));
    return *this;
  }}
  operator float() const {{
{hardware_widen}    return widen<float>(static_cast<uint32_t>(bits));
  }}
  // Of one or of a vector: F is float and U uint32_t, or vectors of as many; the bits are the {lower} of a U.
  template <class F, class U>
  static inline __attribute__((always_inline)) F widen(U low) {{
{widen}  }}
  // To the nearest, ties to even. NaN stays NaN.{saturates}
  template <class U, class F>
  static inline __attribute__((always_inline)) U narrow(F value) {{
{narrow}  }}
}};
"""

_SIXTEEN = {"width": 16, "member": "fraction", "lower": "lower half", "saturates": ""}

_BF16 = _TYPE.format(
    name="aot_tune_bf16",
    bits=7,
    fraction=7,
    **_SIXTEEN,
    hardware_narrow="",
    hardware_widen="",
    widen="""\
    return aot_tune_bits_as<F>(static_cast<U>(low << 16));
""",
    narrow="""\
    const U u = aot_tune_bits_as<U>(value);
    const U quiet = (u >> 16) | 0x40u, rounded = (u + (0x7fffu + ((u >> 16) & 1u))) >> 16;
    return value != value ? quiet : rounded;
""",
)

_F16 = _TYPE.format(
    name="aot_tune_f16",
    bits=10,
    fraction=10,
    **_SIXTEEN,
    hardware_narrow="""\
#if defined(__F16C__) && defined(__FLT16_MAX__)
    const auto same = static_cast<_Float16>(value);
    std::memcpy(&bits, &same, sizeof(bits));
    return *this;
#endif
""",
    hardware_widen="""\
#if defined(__F16C__) && defined(__FLT16_MAX__)
    _Float16 same;
    std::memcpy(&same, &bits, sizeof(bits));
    return static_cast<float>(same);
#endif
""",
    widen="""\
    const U magnitude = low & 0x7fffu;
    const U normal = (magnitude << 13) + 0x38000000u;  // exponents begin at -14, not at -126
    const U odd = normal + 0x38000000u;                // infinities and NaN
    // What is below 2^-14 is a whole number of 2^-24: made without subnormal floats, which may count as 0.
    const F count = aot_tune_bits_as<F>(static_cast<U>(magnitude | 0x4b000000u)) - 8388608.0f;
    const U small = aot_tune_bits_as<U>(static_cast<F>(count * 5.9604644775390625e-08f));
    const U large = count < 31744.0f ? normal : odd;
    const U found = count < 1024.0f ? small : large;
    return aot_tune_bits_as<F>(static_cast<U>(found | ((low & 0x8000u) << 16)));
""",
    narrow="""\
    const U u = aot_tune_bits_as<U>(value), magnitude = u & 0x7fffffffu, none = {};
    const U normal = (magnitude + (0xfffu + ((magnitude >> 13) & 1u)) - 0x38000000u) >> 13;
    // Below 2^-14 whole numbers of 2^-24 are left, to which the sum with 0.5 rounds.
    const F size = aot_tune_bits_as<F>(magnitude), sum = size + 0.5f;
    const U small = aot_tune_bits_as<U>(sum) - 0x3f000000u;
    const U finite = size < 6.103515625e-05f ? small : normal;
    const U large = value != value ? none + 0x7e00u : none + 0x7c00u;
    return (size < 65536.0f ? finite : large) | ((u >> 16) & 0x8000u);
""",
)

_EIGHT = {
    "width": 8,
    "member": "eight_bit_fraction",  # other than that of 16 bits, by which functions for these know them
    "lower": "lowest byte",
    "saturates": " What is too large becomes the largest value, infinities too.",
    "hardware_narrow": "",
    "hardware_widen": "",
}

_WIDEN_EIGHT = """\
    const U magnitude = low & 0x7fu;
    const U normal = (magnitude << {shift}) + {bias}u;  // exponents begin at {least}, not at -126
    // What is below is a whole number of {step}: made without subnormal floats, which may count as 0.
    const F count = aot_tune_bits_as<F>(static_cast<U>(magnitude | 0x4b000000u)) - 8388608.0f;
    const U small = aot_tune_bits_as<U>(static_cast<F>(count * {step_value}f));
    const U large = count < {odd}.0f ? normal : {odd_bits};
    const U found = count < {first}.0f ? small : large;
    return aot_tune_bits_as<F>(static_cast<U>(found | ((low & 0x80u) << 24)));
"""

_NARROW_EIGHT = """\
    const U u = aot_tune_bits_as<U>(value), magnitude = u & 0x7fffffffu, none = {{}};
    const U normal = (magnitude + ({half}u + ((magnitude >> {shift}) & 1u)) - {bias}u) >> {shift};
    // Below {normal} whole numbers of {step} are left, to which the sum rounds.
    const F size = aot_tune_bits_as<F>(magnitude), sum = size + {magic}f;
    const U small = aot_tune_bits_as<U>(sum) - {magic_bits}u;
    const U finite = size < {normal_value}f ? small : normal;
    const U large = value != value ? none + 0x7fu : none + {largest}u;
    return (size < {overflow}f ? finite : large) | ((u >> 24) & 0x80u);
"""

_F8E4M3 = _TYPE.format(
    name="aot_tune_f8e4m3",
    bits=3,
    fraction=3,
    **_EIGHT,
    widen=_WIDEN_EIGHT.format(
        shift=20,
        bias="0x3c000000",
        least=-6,
        step="2^-9",
        step_value="1.953125e-03",
        odd=127,
        odd_bits="(normal | 0x7fc00000u)",
        first=8,
    ),
    narrow=_NARROW_EIGHT.format(
        shift=20,
        half="0x7ffff",
        bias="0x3c000000",
        normal="2^-6",
        normal_value="0.015625",
        step="2^-9",
        magic="16384.0",
        magic_bits="0x46800000",
        largest="0x7e",
        overflow="464.0",
    ),
)

_F8E5M2 = _TYPE.format(
    name="aot_tune_f8e5m2",
    bits=2,
    fraction=2,
    **_EIGHT,
    widen=_WIDEN_EIGHT.format(
        shift=21,
        bias="0x38000000",
        least=-14,
        step="2^-16",
        step_value="1.52587890625e-05",
        odd=124,
        odd_bits="normal + 0x38000000u",
        first=4,
    ),
    narrow=_NARROW_EIGHT.format(
        shift=21,
        half="0xfffff",
        bias="0x38000000",
        normal="2^-14",
        normal_value="6.103515625e-05",
        step="2^-16",
        magic="128.0",
        magic_bits="0x43000000",
        largest="0x7b",
        overflow="61440.0",
    ),
)

_BITS_AS = """\
template <class To, class From>
inline __attribute__((always_inline)) To aot_tune_bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From), "aot_tune_bits_as keeps the size");
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}
"""

NARROW = MappingProxyType({"bf16": _BF16, "f16": _F16, "f8e4m3": _F8E4M3, "f8e5m2": _F8E5M2})
"""The definition of each such type, by the dtype's name."""


def declarations(dtypes: Collection[str]) -> str:
    """The types of those dtypes that need one, with internal linkage; empty where none does."""
    types = [text for name, text in NARROW.items() if name in dtypes]
    return "namespace {\n\n" + "\n".join([_BITS_AS, *types]) + "\n}  // namespace\n" if types else ""
