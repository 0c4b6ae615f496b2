"""Generated checks of what every call must meet. Other calls get an error that names the condition and their values."""

from __future__ import annotations

from aot_tune.expr.integers import checked, is_plain
from aot_tune.link.emit.decision import fact_printer
from aot_tune.link.emit.signature import c_string
from aot_tune.spec import Expr, Operator

__all__ = ["render_legal"]


def render_legal(op: Operator) -> str:
    """The function that checks what every call must meet. Empty if there are no such conditions."""
    if not op.legal:
        return ""
    fact = fact_printer(op)
    lines = ["int32_t check_legal(const Call& c) {"]
    lines += [] if all(map(is_plain, op.legal)) else ["  bool undefined_;"]
    for condition in op.legal:
        if is_plain(condition):
            lines.append(f"  if (!{condition.cpp(fact)})")
        else:
            lines.append("  undefined_ = false;")
            lines.append(f"  if (!{checked(condition, fact)} || undefined_)")
        found = ", ".join(_found(op, name) for name in sorted(condition.facts()))
        told = f"AOT_TUNE_ERROR_{_code(condition)}, {c_string(condition.key())}, {c_string(_hint(condition))}"
        lines.append(f"    return not_legal(kOperator, {told}, {{{found}}});")
    return "\n".join([*lines, "  return AOT_TUNE_OK;", "}", "", ""])


def _found(op: Operator, fact: str) -> str:
    """The initialiser of a fact for an error: a number, or the name of a choice."""
    kind, _, rest = fact.partition(".")
    text = "nullptr"
    if kind == "attribute":
        text = f"kChoices_{rest}[c.v_{rest}]"
    elif kind == "dtype":
        text = f"kDTypes_{rest}[c.y_{rest}].name"
    return f"{{{c_string(fact)}, {fact_printer(op)(fact)}, {text}}}"


def _code(condition: Expr) -> str:
    """The status that fits best: layout, dtype, extent, attribute, or something that must or must not be passed."""
    kinds = {fact.partition(".")[0] if "." in fact else "" for fact in condition.facts()}
    if kinds & {"stride", "alignment"}:
        return "LAYOUT"
    if "dtype" in kinds:
        return "DTYPE"
    if "" in kinds or not kinds:
        return "SHAPE"
    return "ATTRIBUTE" if "attribute" in kinds else "NULL"


def _hint(condition: Expr) -> str:
    facts = condition.facts()
    if any(fact.startswith("stride.") for fact in facts):
        return "pass a contiguous copy of the tensor"
    return "pass a copy of the tensor that is aligned so" if any(f.startswith("alignment.") for f in facts) else ""
