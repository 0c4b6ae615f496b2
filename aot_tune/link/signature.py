"""How an operator's arguments are written in C. The header, the dispatch code and the bindings share this."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from aot_tune.link.library_records import FAMILIES, LibrarySpec, family_facts
from aot_tune.render.environment import text_templates
from aot_tune.spec import Operator, Tensor

_TEMPLATES = text_templates(Path(__file__).parent / "cpp")


def render_template(template: str, **values: object) -> str:
    """A file that is written, from its template in `cpp/`."""
    return _TEMPLATES.get_template(template).render(values, braced=braced)


def braced(items: Sequence[object], empty: str = "") -> str:
    """A list of initialisers in C++. `empty` stands for one without items."""
    return f"{{{', '.join(map(str, items)) or empty}}}"


def shape_text(operator: Operator, tensor: str) -> str:
    """A tensor's declared shape for people: `[M, K]`."""
    return "[" + ", ".join(s.key() for s in operator.tensor(tensor).shape) + "]"


def dtype_text(operator: Operator, tensor: Tensor) -> str:
    """A tensor's dtype for people: `f32`, or the choices of a variable: `f32, bf16 or f16`."""
    return choices_text(operator.dtypes.get(tensor.dtype_name, (tensor.dtype_name,)))


def choices_text(choices: Sequence[str]) -> str:
    """Names for people: `f32, bf16 or f16`."""
    return " or ".join(filter(None, (", ".join(choices[:-1]), choices[-1])))


def c_string(text: str) -> str:
    """A C string literal in ASCII. All but plain characters are octal escapes."""
    plain = (chr(b) if 32 <= b < 127 and chr(b) not in '"\\\\?' else f"\\{b:03o}" for b in text.encode())
    return '"' + "".join(plain) + '"'


def handler_names(spec: LibrarySpec, operator: str) -> dict[str, str]:
    """An operator's handlers by XLA platform. Each library has one for CUDA, which may say that there is nothing."""
    return {FAMILIES[family].platform: f"{spec.prefix}_{operator}_xla_{family}" for family in xla_families(spec)}


def xla_families(spec: LibrarySpec) -> list[str]:
    """Families of devices for which a library has handlers of XLA's FFI, sorted."""
    families = {family for table in spec.operators for family in table.families}
    return sorted({f for f in families if family_facts(f).platform} | {"cpu", "cuda"})
