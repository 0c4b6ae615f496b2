"""Odd calls for the tests on a GPU: drawn at random, and made for the guards of a variant. Needs no torch."""

import ast
import itertools
import operator as op
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from aot_tune.bench.devices.family import family
from aot_tune.bench.host.odd_problems import checks_for
from aot_tune.bench.protocol.measurement_records import Policy
from aot_tune.spec import (
    Expr,
    Operator,
    Problem,
    Tensor,
    all_of,
    dtype_index,
    maximum,
    minimum,
    next_power_of_2,
    problem,
    where,
)

Drawn = tuple[Problem, str]
"""A problem, and the layout of those of its tensors that have no strides in it."""

LAYOUTS = ("dense", "padded", "padded oddly", "unaligned", "stepped", "broadcast")
LEAST = 5
"""Calls that a variant must be right on."""

_ROWS = (1, 2, 3, 7, 33, 132, 300)
_WIDTHS = (1, 3, 8, 100, 127, 128, 136, 512, 528, 1000, 1024, 1032, 2064, 4096, 4099, 8192, 14336, 40008, 131072)
_PRODUCT = {
    "B": (1, 2, 5),
    "M": (1, 2, 3, 8, 15, 16, 17, 64, 100, 129, 257, 400),
    "N": (1, 7, 8, 64, 120, 129, 136, 256, 264, 1000, 1288),
    "D": (64, 80, 96, 128, 160, 192, 200, 256),
    "K": (1, 5, 8, 31, 64, 72, 136, 200, 513, 520, 1032, 4104),
}
_EXAMPLE_ROWS = (1, 2, 3, 7, 33, 48, 300)
_EXAMPLE_WIDTHS = (1, 3, 100, 128, 1000, 3088, 4096, 4099, 8192, 9008, 14336, 20000)
_EXAMPLE_LAYOUTS = ("dense", "padded", "padded oddly", "unaligned", "broadcast")
_DRAWN, _SERVED, _REFUSED = 3000, 40, 3
_LAID_OUT = 3

_OPERATIONS: dict[type[ast.AST], Callable[[Expr, Expr], Expr]] = {
    ast.Add: op.add,
    ast.Sub: op.sub,
    ast.Mult: op.mul,
    ast.FloorDiv: op.floordiv,
    ast.Mod: op.mod,
    ast.Eq: op.eq,
    ast.NotEq: op.ne,
    ast.Lt: op.lt,
    ast.LtE: op.le,
    ast.Gt: op.gt,
    ast.GtE: op.ge,
    ast.And: op.and_,
    ast.Or: op.or_,
}
_FUNCTIONS: dict[str, Callable[..., Expr]] = {
    "min": minimum,
    "max": maximum,
    "next_power_of_2": next_power_of_2,
    "where": where,
}


def guards_of(operator: Operator, dtypes: Mapping[str, str], requires: Sequence[str]) -> tuple[Expr, ...]:
    """The guards of a variant of a manifest, with its dtypes, which a generic one does not name among them.

    Raises:
        ValueError: for a text that is not that of an expression.
    """
    pinned = (dtype_index(v) == operator.dtypes[v].index(d) for v, d in dtypes.items())
    return (*pinned, *map(expression, requires))


def expression(text: str) -> Expr:
    """The expression whose `key` a manifest has.

    Raises:
        ValueError: when there is none.
    """
    try:
        found = _built(ast.parse(re.sub(r"\.(?=\d)", "._", text), mode="eval").body)
    except (SyntaxError, KeyError) as error:
        raise ValueError(f"{text!r} is no guard of a manifest: {error!r}") from error
    if found.key() != text:
        raise ValueError(f"{text!r} was read as {found.key()!r}")
    return found


def _built(node: ast.AST) -> Expr:
    match node:
        case ast.Constant(value=int(value)):
            return Expr("const", value=value)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(value))):
            return Expr("const", value=-value)
        case ast.BinOp(left=left, op=kind, right=right) | ast.Compare(left=left, ops=[kind], comparators=[right]):
            return _OPERATIONS[type(kind)](_built(left), _built(right))
        case ast.BoolOp(op=kind, values=[left, right]):
            return _OPERATIONS[type(kind)](_built(left), _built(right))
        case ast.Call(func=ast.Name(id=name), args=given):
            return _FUNCTIONS[name](*map(_built, given))
        case ast.Name() | ast.Attribute():
            return Expr("fact", value=re.sub(r"\._(?=\d)", ".", ast.unparse(node)))
        case _:
            raise ValueError(f"{ast.dump(node)} is in no expression")


def odd_problems(operator: Operator, seed: int, count: int, dtypes: Mapping[str, str] | None = None) -> Iterator[Drawn]:
    """Problems without strides, and the layout that their tensors get."""
    generator = random.Random(seed)
    orders: list[dict[str, tuple[int, ...]]] = [{}]
    if any(t.name == "b" and t.rank >= 2 for t in operator.inputs):
        rank = operator.tensor("b").rank
        orders = [{"b": (*range(rank - 2), rank - 1, rank - 2)}, {"b": (*range(rank - 2), rank - 1, rank - 2)}, {}]
    for number in range(count):
        dims = _sizes(operator, generator)
        if number % 2:  # every second with what vector loads want
            dims = {d: -(-n // 8) * 8 if d in ("N", "K", "D") else n for d, n in dims.items()}
        found = problem(
            order=generator.choice(orders),
            present=[t.name for t in operator.tensors if t.optional and generator.random() < 0.5],
            attributes={a.name: generator.choice(a.choices) for a in operator.attributes},
            dtypes=dtypes or {v: generator.choice(choices) for v, choices in operator.dtypes.items()},
            **dims,
        )
        yield found, "dense" if number % 4 == 1 else generator.choice(LAYOUTS)


def _sizes(operator: Operator, generator: random.Random) -> dict[str, int]:
    if set(operator.dims) == {"R", "D"}:
        width = generator.choice(_WIDTHS)
        return {"R": generator.choice([r for r in _ROWS if r * width < 1 << 22]), "D": width}
    return {d: generator.choice(_PRODUCT.get(d, (1, 17, 64))) for d in operator.dims}


def placed(operator: Operator, chosen: Problem, tensor: Tensor, layout: str) -> tuple[tuple[int, ...], int]:
    """Strides of a tensor, and where its first element is beyond an aligned address, in elements."""
    shape = operator.shape(chosen, tensor)
    order = chosen.order.get(tensor.name) or tuple(range(len(shape)))
    pad = {"padded": 8, "padded oddly": 3}.get(layout, 0)
    step = 3 if layout == "stepped" else 1
    strides = [0] * len(shape)
    for place, axis in enumerate(reversed(order)):
        strides[axis] = step
        step *= max(shape[axis], 1)
        if place == 0 and pad:
            step = -(-step // pad) * pad + pad if pad == 8 else step + pad
    if layout == "broadcast" and not tensor.output and len(shape) > 1:
        strides = [s if axis == order[-1] else 0 for axis, s in enumerate(strides)]
    size = operator.dtype(chosen, tensor).itemsize
    shift = 1 if layout == "unaligned" else chosen.alignment.get(tensor.name, 0) // size
    return chosen.strides.get(tensor.name, tuple(strides)), shift


def called(operator: Operator, chosen: Problem, layout: str) -> Problem:
    """The problem with the strides and alignments that its tensors have in a layout."""
    present = [t for t in operator.tensors if operator.is_present(chosen, t)]
    least = {t.name: operator.dtype(chosen, t).itemsize for t in present} if layout == "unaligned" else chosen.alignment
    strides = {t.name: placed(operator, chosen, t, layout)[0] for t in present}
    return msgspec.structs.replace(chosen, order={}, strides=strides, alignment=least)


def refusing(operator: Operator, guards: Sequence[Expr], chosen: Problem, layout: str) -> list[Expr]:
    """The guards that do not hold for a call; none where it must be served."""
    facts = operator.facts(called(operator, chosen, layout))
    return [g for g in guards if not g.evaluate(facts)]


def own_calls(operator: Operator, guards: tuple[Expr, ...]) -> list[Drawn]:
    """Legal calls made for the guards of a variant, each different from the others.

    First those problems that the build itself verifies on a GPU what has these guards, without those that torch has no
    tensors for. Then some of them in all layouts, which the guards need not admit: what is wrong with such a call is
    the layout alone.
    """
    policy = family("cuda").policy(Policy())
    made = [c.problem for c in checks_for(operator, guards, policy, on_host=False)]
    loose = tuple(g for g in guards if not _of_optional(operator, g))
    if len(loose) < len(guards):  # such as of masks that are the same for all rows
        made += [_broadcast(operator, c.problem) for c in checks_for(operator, loose, policy, on_host=False)]
    made = [p for p in made if all(s >= 0 for strides in p.strides.values() for s in strides)]
    plain = list({str(p.dims): p for p in made if not p.strides and not p.alignment}.values())
    every = [(p, "dense") for p in made] + [(p, layout) for p in plain[:_LAID_OUT] for layout in LAYOUTS]
    found: dict[str, Drawn] = {}
    for one, layout in every:
        facts = operator.facts(called(operator, one, layout))
        if all_of(operator.legal, facts):
            found.setdefault(str(facts), (one, layout))
    return list(found.values())


def _of_optional(operator: Operator, guard: Expr) -> bool:
    """Whether a guard is about strides of an optional input with several axes."""
    names = [t.name for t in operator.inputs if t.optional and t.rank > 1]
    return any(fact.startswith(f"stride.{name}.") for name in names for fact in guard.facts())


def _broadcast(operator: Operator, one: Problem) -> Problem:
    """The problem with optional inputs that are the same along all axes but the first and the last."""
    strides = dict(one.strides)
    for tensor in operator.inputs:
        if tensor.optional and tensor.rank > 1 and tensor.name in one.present:
            last = int(tensor.shape[-1].evaluate(one.dims))
            strides[tensor.name] = (-(-last // 16) * 16, *[0] * (tensor.rank - 2), 1)
    return msgspec.structs.replace(one, strides=strides)


def odd_rows(dtypes: Mapping[str, str]) -> Iterator[Drawn]:
    """Problems of operators on rows in their layouts, around what the example is tuned for and far from it."""
    for rows, width, layout in itertools.product(_EXAMPLE_ROWS, _EXAMPLE_WIDTHS, _EXAMPLE_LAYOUTS):
        yield problem(R=rows, D=width, dtypes=dtypes), layout


def calls_of(operator: Operator, guards: tuple[Expr, ...], dtypes: Mapping[str, str]) -> list[Drawn]:
    """Calls to make of a variant: of the workload, made for its guards, and drawn at random.

    Of the latter some that the guards admit, some that they do not, and for each guard the first that it alone refuses.
    """
    default = {v: choices[0] for v, choices in operator.dtypes.items()}
    usual = [(p, "dense") for p in operator.workload_for("cuda") if {**default, **p.dtypes} == dtypes]
    fit, unfit, alone = list[Drawn](), list[Drawn](), dict[str, Drawn]()
    for pair in odd_problems(operator, 1, _DRAWN, dtypes):
        facts = operator.facts(called(operator, *pair))
        if not all_of(operator.legal, facts):
            continue
        against = [g for g in guards if not g.evaluate(facts)]
        (unfit if against else fit).append(pair)
        if len(against) == 1:
            alone.setdefault(against[0].key(), pair)
    return [*usual, *own_calls(operator, guards), *fit[:_SERVED], *unfit[:_REFUSED], *alone.values()]
