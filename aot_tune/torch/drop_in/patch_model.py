"""`patch(model)`: a library's operators replace a model's modules until that is undone."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import ModuleType, TracebackType
from typing import Any

import torch

from aot_tune.torch.drop_in.attention_calls import (
    AttentionCalls,
    ReplacedAttention,
    attending_forward,
    calls_attention,
    replace_attention,
)
from aot_tune.torch.drop_in.module_plans import ModulePlan, plan_module
from aot_tune.torch.drop_in.patch_library import ASKED, OPERATORS, PatchLibrary
from aot_tune.torch.drop_in.replaced_modules import Replaced
from aot_tune.torch.torch_versions import TorchError


@dataclass(frozen=True)
class Left:
    """A module that was left as it was: its name, its class, and why."""

    name: str
    kind: str
    why: str


@dataclass
class Patched:
    """What `patch` did to a model. `print(...)` shows it as a table. `undo()` takes it back, and so does `with`.

    Attributes:
        replaced: the modules that call operators, with the number of eager calls that went to operators and to torch.
        left: modules that could have been replaced, and why they were not.
        unknown: how many modules there are of each class that no operator can replace.
    """

    replaced: tuple[Replaced, ...] = ()
    left: tuple[Left, ...] = ()
    unknown: dict[str, int] = field(default_factory=dict)
    _attention: ReplacedAttention | None = field(default=None, repr=False)

    def undo(self) -> None:
        """Give every module its own forward back. A second call changes nothing.

        Raises:
            TorchError: when somebody else has replaced a forward or an attention of ours. The rest is undone.
        """
        kept = [module.name or "the model" for module in self.replaced if not module.remove()]
        if self._attention is not None and not self._attention.remove():
            kept.append("the attention of the model's config")
        self._attention = None
        if kept:
            raise TorchError(
                f"these cannot be undone: {', '.join(kept[:5])}" + (f" and {len(kept) - 5} more" if kept[5:] else ""),
                why="something else has replaced what patch() had put there",
                fix="first undo what was done after patch()",
            )

    def __enter__(self) -> Patched:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.undo()

    def __str__(self) -> str:
        rows = [("modules", "by", "rows", "kernels", "calls: served, passed on")]
        for (kind, operators, ranges, kernels), some in _groups(self.replaced):
            calls = f"{sum(m.served for m in some)}, {sum(m.passed for m in some)}"
            rows.append((f"{sum(m.modules for m in some)} {kind}", operators, ranges, kernels, calls))
        lines = _columns(rows) if len(rows) > 1 else ["nothing is replaced"]
        if self.left:
            counted = Counter((module.kind, module.why) for module in self.left)
            first = {(module.kind, module.why): module.name or "the model" for module in reversed(self.left)}
            left = [(f"{n} {k}", f"{first[k, why]}: {why}" if n == 1 else why) for (k, why), n in counted.items()]
            lines += ["", *_columns([("left as they are", "why"), *left])]
        if self.unknown:
            listed = ", ".join(f"{n} {kind}" for kind, n in sorted(self.unknown.items()))
            lines += ["", f"no operator is for: {listed}"]
        return "\n".join(line.rstrip() for line in lines)


def patch(
    model: torch.nn.Module, ops: ModuleType | None = None, *, operators: Iterable[str] | None = None, tuned: bool = True
) -> Patched:
    """Make a model call operators of a library where these compute what its modules do.

    Parameters, buffers, names and `state_dict()` stay as they are. Some calls go to the modules themselves: those of
    modules that train, that record gradients or that run under autocast, and those that no operator takes. Move and
    cast the model first: if a module's parameters change their dtype or device later, its calls go to torch. Compile
    the model afterwards.

    Args:
        model: any module. It is changed in place.
        ops: the library's module; the default is `aot_tune.ops`.
        operators: the operators to use; the default is gemm, rms_norm, layer_norm, silu_mul, softmax and
            flash_attention.
        tuned: whether modules are replaced only if a tuned variant of the library serves their calls. With False,
            generic variants may serve too.

    Raises:
        TorchError: when the model is compiled already, or `operators` has one that replaces nothing.
    """
    if any(isinstance(m, torch._dynamo.OptimizedModule) or m._compiled_call_impl is not None for m in model.modules()):
        raise TorchError("the model is compiled already", fix="patch it first, and compile it afterwards")
    only = None if operators is None else frozenset(operators)
    wrong = sorted((only or frozenset()) - set(OPERATORS))
    if wrong:
        raise TorchError(f"no operator {wrong[0]!r} replaces anything", fix=f"pass some of {', '.join(OPERATORS)}")
    library = PatchLibrary(importlib.import_module("aot_tune.ops") if ops is None else ops, only, tuned=tuned)
    plans, left, unknown = _plan(library, model)
    attention = AttentionCalls(library)
    attended = replace_attention(model, attention)
    if isinstance(attended, str):
        left.append(Left("attention", "attention of transformers", attended))
    elif attended is None:
        _plan_attention(library, attention, model, plans, left)
    for plan, module in plans:
        plan.replaced.install(module, plan.forward)
    replaced = [plan.replaced for plan, _ in plans]
    taken = attended if isinstance(attended, ReplacedAttention) else None
    return Patched((*replaced, *([] if taken is None else [taken.made])), tuple(left), unknown, taken)


def _plan(
    library: PatchLibrary, model: torch.nn.Module
) -> tuple[list[tuple[ModulePlan, torch.nn.Module]], list[Left], dict[str, int]]:
    """Plans for all modules that can be replaced; those that cannot be; and how many others there are of each class."""
    plans: list[tuple[ModulePlan, torch.nn.Module]] = []
    left: list[Left] = []
    unknown: Counter[str] = Counter()
    for name, module in model.named_modules():
        kind = type(module).__name__
        if isinstance(module, torch.jit.ScriptModule) or "forward" in vars(module):
            left.append(Left(name, kind, "its forward has been replaced already"))
            continue
        planned = plan_module(library, name, module)
        if isinstance(planned, ModulePlan):
            plans.append((planned, module))
        elif planned is not None:
            left.append(Left(name, kind, planned))
        elif not any(True for _ in module.children()):
            unknown[kind] += 1
    return plans, left, dict(unknown)


def _plan_attention(
    library: PatchLibrary,
    calls: AttentionCalls,
    model: torch.nn.Module,
    plans: list[tuple[ModulePlan, torch.nn.Module]],
    left: list[Left],
) -> None:
    """Plans for modules that call torch's function themselves."""
    planned = {id(module) for _, module in plans}
    for name, module in model.named_modules():
        kind = type(module).__name__
        if isinstance(module, torch.nn.MultiheadAttention):
            left.append(Left(name, kind, "torch computes all of it in one function"))
        elif id(module) not in planned and "forward" not in vars(module) and calls_attention(module):
            if "flash_attention" in library.without:
                left.append(Left(name, kind, library.without["flash_attention"]))
                continue
            replaced = Replaced(name, kind, ("flash_attention",), ASKED)
            plans.append((ModulePlan(replaced, attending_forward(replaced, calls)), module))


def _groups(replaced: Iterable[Replaced]) -> list[tuple[tuple[str, str, str, str], list[Replaced]]]:
    groups: dict[tuple[str, str, str, str], list[Replaced]] = {}
    for module in replaced:
        key = module.kind, ", ".join(module.operators), str(module.rows), ", ".join(module.rows.kernels)
        groups.setdefault(key, []).append(module)
    return list(groups.items())


def _columns(rows: list[tuple[Any, ...]]) -> list[str]:
    widths = [max(len(str(cell)) for cell in column) for column in zip(*rows, strict=True)]
    return ["  ".join(str(cell).ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
