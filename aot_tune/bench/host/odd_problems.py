"""Odd problems that every object must be right on.

They follow from the operator, and are fitted to a kernel's guards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from aot_tune.bench.protocol.measurement_records import Check, Policy
from aot_tune.spec import FLOATING, Expr, Generator, IntegerSums, Operator, Problem, Tensor, all_of, row_major
from aot_tune.spec.calls import Way, extents_exist, followed, ways_to_follow
from aot_tune.spec.generators import ROWWISE, Drawn

_LONG = (67, 131, 259)  # longer than two blocks of most sizes, and a multiple of none
_SHORT = (3, 5, 7)
_PLAIN = (13, 37, 29)
_OF_MANY_DIMS = (5, 13, 11)  # in place of these: tensors would be so large that references take minutes
_MANY_DIMS = 7
_LONGEST = 1031
_LONGEST_PADDED = 1021  # also a prime; rows padded by 3 have a pitch with many divisors
_BOUNDS = (61, 29, 13, 7, 3, 1)  # for kernels that serve small dims only
_PITCH = 64
_MOST_SCALARS = 6
_OF_EACH_WAY = 3  # so many derived problems, those of long dims, come in each of `_ways`; others take turns
_FAR, _FEW = 1 << 16, (3, 5, 2)  # more than integers of 16 bits hold, and few rows, because each takes so much
_MOST = 28  # for one object, on a device where every launch and answer takes its time
_MOST_ON_HOST = 40  # where a reference is what takes time
_MULTIPLES = (2, 3, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 512)


def derived_checks(
    operator: Operator,
    requires: Sequence[Expr] = (),
    *,
    special: bool = True,
    most_bytes: int = 8 << 20,
    most: int | None = None,
) -> list[Check]:
    """Problems on which an object is verified, beside the problem that it is tuned for.

    They vary the dims (multiples of nothing, ones, one long dim), the layouts (permuted, padded, reversed, broadcast
    and strided axes, the least alignment), the optional tensors and the attributes. A problem may be ruled out by
    `requires` (a kernel's guards and pinned dims) or by what the operator calls legal. Then the nearest allowed problem
    takes its place, if there is one. One more has small integers, if the operator is exact on them. Its sums are longer
    than most blocks, and a multiple of none. Problems of more than `most_bytes` are left out, but never all. If there
    are more than `most`, they are thinned out evenly.
    """
    checks = _every_check(operator, requires, special)
    sizes = {key: operator.compulsory_bytes(check.problem) for key, check in checks.items()}
    small = [check for key, check in checks.items() if sizes[key] <= most_bytes]
    if small or not checks:
        return _thinned(small, most, _first_of_each_way(operator, small))
    plain = [key for key, check in checks.items() if not check.integers and not check.odd] or list(checks)
    return [checks[key] for key in sorted(plain, key=lambda k: (sizes[k], k))[:2][-1:]]


def large_checks(operator: Operator, requires: Sequence[Expr], most_bytes: int) -> tuple[int, int]:
    """How many of the derived checks take more than `most_bytes`, and how many there are in all."""
    checks = _every_check(operator, requires, special=True).values()
    return sum(operator.compulsory_bytes(c.problem) > most_bytes for c in checks), len(checks)


def _every_check(operator: Operator, requires: Sequence[Expr], special: bool) -> dict[str, Check]:
    """The derived checks of any size."""
    requires = (*extents_exist(operator), *operator.legal, *requires)
    checks: dict[str, Check] = {}
    dtypes = _pinned_dtypes(operator, requires)
    ways = _ways(operator, requires, dtypes)
    by_way = [(*_dims(operator, w), *_layouts(operator, w, dtypes), *_options(operator, w)) for w in ways]
    alike = [[*zip(problems, ways, strict=True)] for problems in zip(*by_way, strict=True)]
    derived = [chosen for i, ps in enumerate(alike) for chosen in (ps if i < _OF_EACH_WAY else [ps[i % len(ways)]])]
    way = ways[-1]
    other = {s.name: s.another for s in operator.scalars if s.another is not None}
    inexact = other | {s.name: s.inexact for s in operator.scalars if s.inexact is not None}
    others: tuple[dict[str, float | int], ...] = ({}, other or inexact, {}, inexact)
    wanted = [
        Check(problem=msgspec.structs.replace(p, dtypes=dtypes), scalars=others[i % 4])
        for i, (p, _) in enumerate(derived)
    ]
    wanted += [Check(problem=p) for p in operator.checks]
    if operator.exact is not None:
        whole = _integer_check(operator, way, operator.exact, requires, dtypes)
        wanted += [whole] if whole is not None else []
    last = msgspec.structs.replace(_problem(operator, way, _plain(operator)), dtypes=dtypes)
    wanted += _odd_values(operator, last) if special else []
    if special and (put := operator.special(last)) is not None:
        wanted.append(Check(problem=last, special=put.name))
    for i, check in enumerate(wanted):
        stated = (w for w in ways if followed(w, check.problem.dims) == check.problem.dims)
        own = derived[i][1] if i < len(derived) else next(stated, way)
        fitted = _fitted(operator, own, check.problem, requires)
        if fitted is not None:
            fitting = msgspec.structs.replace(check, problem=fitted)
            name = f"{fitted.id} {check.special} {check.integers} {check.odd and (check.odd, check.scalars)}"
            checks.setdefault(name, fitting)
    return checks


def _ways(operator: Operator, requires: tuple[Expr, ...], dtypes: Mapping[str, str]) -> list[Way]:
    """The ways in which dims follow from others for which there are problems, at least one.

    A way that fits only with a shorter dim is left out if another fits with the full one.
    """
    ways = ways_to_follow(operator)
    if len(ways) == 1:
        return ways
    plain = [msgspec.structs.replace(_problem(operator, way, _LONG), dtypes=dict(dtypes)) for way in ways]
    fitting = [(w, f.dims) for w, p in zip(ways, plain, strict=True) if (f := _fitted(operator, w, p, requires))]
    wanted = {d: n for d, n in plain[0].dims.items() if d not in ways[0]}
    uncut = {d for d, n in wanted.items() if any(dims[d] >= n for _, dims in fitting)}
    return [w for w, dims in fitting if all(dims[d] >= wanted[d] for d in uncut)] or ways[:1]


def _odd_values(operator: Operator, problem: Problem) -> Iterator[Check]:
    """Checks with zeros and denormal numbers, if inputs have these, and each with an odd scalar, if there are any."""
    every = msgspec.structs.replace(problem, present=tuple(sorted(t.name for t in operator.tensors if t.optional)))
    floats = [t for t in operator.inputs if operator.dtype(every, t).code in FLOATING]
    if any(isinstance(t.values, Generator) and t.values.signs for t in floats):
        yield Check(problem=every, odd="zeros")
        yield Check(problem=every, odd="denormal numbers")
    odd = [{s.name: number} for s in operator.scalars for number in s.odd]
    yield from (Check(problem=every, odd="scalars", scalars=scalars) for scalars in odd[:_MOST_SCALARS])


def checks_for(operator: Operator, requires: Sequence[Expr], policy: Policy, *, on_host: bool) -> list[Check]:
    """The derived checks that every object of a family of devices must be right on."""
    most = _MOST_ON_HOST if on_host else _MOST
    return derived_checks(operator, requires, special=policy.special_values, most_bytes=policy.check_bytes, most=most)


def oddest_checks(every: Sequence[Check]) -> list[Check]:
    """Checks of `checks_for`: one with the oddest strides, and one that chooses an attribute, if there are any."""
    plain = [c for c in every if not c.integers and not c.special and not c.odd]
    if not plain:
        return []
    layout = max(plain, key=_oddness)
    chosen = max(plain, key=lambda c: (*map(len, (c.problem.attributes, c.problem.present)), c.place))
    return [layout] if chosen == layout or not chosen.problem.attributes else [layout, chosen]


def _oddness(check: Check) -> tuple[int, int, int, int, str]:
    problem = check.problem
    spread = sum(s[-1:] not in ((), (1,)) for s in problem.strides.values())
    return len(problem.strides), spread, len(problem.order), len(problem.present), check.place


def _pinned_dtypes(operator: Operator, requires: Sequence[Expr]) -> dict[str, str]:
    """The dtypes that the facts `dtype.<variable>` are pinned to. Dtypes that are the defaults anyway are left out."""
    pinned = dict(p for r in requires for p in r.pinned())
    dtypes = {v: choices[pinned.get(f"dtype.{v}", 0)] for v, choices in operator.dtypes.items()}
    return {v: d for v, d in dtypes.items() if d != operator.dtypes[v][0]}


def _first_of_each_way(operator: Operator, checks: Sequence[Check]) -> list[Check]:
    """For each way in which extents follow from others, the first check that is of this way alone."""
    ways, first = ways_to_follow(operator), dict[int, Check]()
    for check in checks if len(ways) > 1 else ():
        dims = check.problem.dims
        own = [i for i, way in enumerate(ways) if followed(way, dims) == dims]
        if len(own) == 1:
            first.setdefault(own[0], check)
    return [*first.values()]


def _thinned(checks: list[Check], most: int | None, always: Sequence[Check]) -> list[Check]:
    """At most so many, or a few more, spread over the list, with odd values and layouts, the last, and some others."""
    if most is None or len(checks) <= most:
        return checks
    far = [c for c in checks if any(_FAR in strides for strides in c.problem.strides.values())]
    whole = [c for c in checks if c.integers or c.odd or c in far or c in always]
    rest = [c for c in checks if c not in whole]
    kept = min(max(most - len(whole), 2), len(rest))
    spread = [rest[i * (len(rest) - 1) // max(kept - 1, 1)] for i in range(kept)]
    return [*spread[:-1], *whole, *spread[-1:]]


def _plain(operator: Operator) -> Sequence[int]:
    return _PLAIN if len(operator.dims) < _MANY_DIMS else _OF_MANY_DIMS


def _problem(operator: Operator, way: Way, extents: Sequence[int], turn: int = 0) -> Problem:
    dims = {n: extents[(i + turn) % len(extents)] for i, n in enumerate(operator.dims)}
    return Problem(dims=followed(way, dims))


def _dims(operator: Operator, way: Way) -> Iterator[Problem]:
    names = operator.dims
    for turn in range(min(len(names), len(_LONG))):
        yield _problem(operator, way, _LONG, turn)
    yield _problem(operator, way, _SHORT)
    yield _problem(operator, way, (1,))
    for name in names:
        small = dict(zip(names, (_SHORT * len(names))[: len(names)], strict=True))
        yield Problem(dims=followed(way, small | {name: 1}))
        yield Problem(dims=followed(way, small | {name: _LONGEST}))


def _integer_check(
    operator: Operator, way: Way, exact: IntegerSums, requires: Sequence[Expr], dtypes: Mapping[str, str]
) -> Check | None:
    """Small integers in a problem whose sums have many terms. Every optional tensor is passed.

    If that is allowed, sums run along padded rows, so that a number also follows their last term.
    """
    requires = (*requires, *exact.requires)
    optional = tuple(sorted(t.name for t in operator.tensors if t.optional))
    plain = _problem(operator, way, _plain(operator))
    summed = [n for n in operator.dims if n in exact.terms.facts()]
    dense, padded = (
        msgspec.structs.replace(
            plain,
            dims=followed(way, {**plain.dims, **dict.fromkeys(summed, long)}),
            present=optional,
            dtypes=dict(dtypes),
        )
        for long in (_LONGEST, _LONGEST_PADDED)
    )
    orders = {t.name: sorted(range(t.rank), key=lambda a: t.shape[a].facts() <= set(summed)) for t in operator.tensors}
    strides = {t.name: _padded(operator, padded, t, 3, 1, orders[t.name]) for t in operator.tensors}
    for wanted in (msgspec.structs.replace(padded, strides=strides), dense):
        fitted = _fitted(operator, way, wanted, requires)
        if fitted is not None and (wanted is dense or fitted.strides):
            return Check(problem=fitted, integers=True)
    return None


def _layouts(operator: Operator, way: Way, dtypes: Mapping[str, str]) -> Iterator[Problem]:
    # Legal ones first: strides depend on the dims.
    base, few = (_legal(operator, way, extents) for extents in (_plain(operator), _FEW))
    many = [t for t in operator.tensors if t.rank > 1]
    optional = tuple(sorted(t.name for t in operator.tensors if t.optional))
    base, few = (msgspec.structs.replace(p, dtypes=dict(dtypes), present=optional) for p in (base, few))
    for tensor in many:
        yield msgspec.structs.replace(base, order={tensor.name: tuple(reversed(range(tensor.rank)))})
    yield msgspec.structs.replace(base, order={t.name: tuple(reversed(range(t.rank))) for t in many})
    yield msgspec.structs.replace(base, strides={t.name: _padded(operator, base, t, 3, 1) for t in many})
    yield msgspec.structs.replace(base, strides={t.name: _padded(operator, base, t, 2, 2) for t in operator.tensors})
    for number in range(2):  # views of half the columns of a wider array, and rows far apart
        apart = {t.name: _apart(operator, few, t, far=(i + number) % 2 == 1) for i, t in enumerate(many)}
        yield msgspec.structs.replace(few, strides=apart)
    for tensor in operator.inputs:
        dense = row_major(operator.shape(base, tensor))
        for axis in range(tensor.rank):
            one_row = axis == tensor.rank - 1 and isinstance(tensor.values, ROWWISE)
            one_row |= isinstance(tensor.values, Drawn)
            for factor in (-1,) if one_row or tensor.inout else (-1, 0):
                strides = tuple(s * factor if a == axis else s for a, s in enumerate(dense))
                yield msgspec.structs.replace(base, strides={tensor.name: strides})
    yield msgspec.structs.replace(base, alignment={t.name: operator.dtype(base, t).itemsize for t in operator.tensors})


def _legal(operator: Operator, way: Way, extents: Sequence[int]) -> Problem:
    """The problem of these extents, or the nearest one whose dims are legal, if there is one."""
    problem = _problem(operator, way, extents)
    return legal_problem(operator, way, problem) or problem


def legal_problem(operator: Operator, way: Way, problem: Problem) -> Problem | None:
    """The problem, or the nearest one whose dims are legal, if there is one."""
    about_dims = tuple(r for r in (*extents_exist(operator), *operator.legal) if r.facts() <= set(operator.dims))
    return _fitted(operator, way, problem, about_dims)


def _apart(operator: Operator, problem: Problem, tensor: Tensor, *, far: bool) -> tuple[int, ...]:
    """Strides of a tensor whose rows are twice as far apart as they must be. With `far`, the first axis is `_FAR`."""
    strides = _padded(operator, problem, tensor, operator.shape(problem, tensor)[-1], 1)
    return (_FAR, *strides[1:]) if far else strides


def _padded(
    operator: Operator, problem: Problem, tensor: Tensor, pad: int, step: int, order: Sequence[int] = ()
) -> tuple[int, ...]:
    """Strides of a tensor. Its fastest axis has stride `step`, and its rows are `pad` elements longer than needed."""
    shape = operator.shape(problem, tensor)
    strides = [0] * len(shape)
    size, rest = step, pad
    for axis in reversed(order or range(len(shape))):
        strides[axis] = size
        size, rest = size * shape[axis] + rest, 0
    return tuple(strides)


def _options(operator: Operator, way: Way) -> Iterator[Problem]:
    base = _problem(operator, way, _plain(operator), 1)
    optional = tuple(sorted(t.name for t in operator.tensors if t.optional))
    for name in optional:
        yield msgspec.structs.replace(base, present=(name,))
        if len(optional) > 2:
            yield msgspec.structs.replace(base, present=tuple(n for n in optional if n != name))
    yield msgspec.structs.replace(base, present=optional)
    for attribute in operator.attributes:
        for choice in attribute.choices:
            yield msgspec.structs.replace(base, attributes={attribute.name: choice}, present=optional)
            yield msgspec.structs.replace(base, attributes={attribute.name: choice})


def _fitted(operator: Operator, way: Way, problem: Problem, requires: tuple[Expr, ...]) -> Problem | None:
    """The problem if it is allowed, else an allowed one near it: pinned facts set, dims rounded up where they must be.

    If this fails in the given order of requirements, those about dims alone come first in a second attempt.
    """
    if all_of(requires, operator.facts(problem)):
        return problem
    names = set(operator.dims)
    dims_first = tuple(sorted(requires, key=lambda r: not r.facts() <= names))
    return _nearest(operator, way, problem, requires) or _nearest(operator, way, problem, dims_first)


def _nearest(operator: Operator, way: Way, problem: Problem, requires: tuple[Expr, ...]) -> Problem | None:
    """The problem with one requirement after the other met, or None if they are not all met in the end."""
    pinned = dict(p for r in requires for p in r.pinned())
    near = _with_pins(operator, way, problem, pinned)
    facts = operator.facts(near)
    of_dims = [r for r in requires if r.facts() <= set(operator.dims)]
    for require in requires:
        if not require.evaluate(facts):
            nearer = _rounded(operator, way, near, facts, require, pinned, of_dims)
            nearer = nearer or _pitched(operator, near, require)
            if nearer is not None:
                near, facts = nearer, operator.facts(nearer)
    return near if all_of(requires, facts) else None


def _rounded(
    operator: Operator,
    way: Way,
    problem: Problem,
    facts: Mapping[str, int],
    require: Expr,
    pinned: Mapping[str, int],
    of_dims: Sequence[Expr],
) -> Problem | None:
    """The problem with new extents for the dims of a requirement.

    They are rounded up to the least multiple that meets it, or cut. If neither meets it, extents at its constants,
    between them and their halves, or beyond them are tried. Extents with which `of_dims` (the requirements about dims
    alone) still hold are preferred.
    """
    about = require.facts()
    about = about.union(*(extent.facts() for name, extent in way.items() if name in about)).difference(way)
    names = [n for n in operator.dims if n in about and n not in pinned]
    if not names:
        return None
    others = tuple(r for r in of_dims if r.evaluate(facts))
    close, beyond = _extents({n: problem.dims[n] for n in names}, _constants(require))
    moves = any(fact.startswith("stride.") for fact in about)  # other facts do not change with the dims
    first: Problem | None = None
    for changed in close:
        dims = followed(way, {**problem.dims, **changed})
        near = msgspec.structs.replace(problem, dims=dims, strides={})
        if require.evaluate(operator.facts(near) if moves else {**facts, **dims}):
            if all_of(others, {**facts, **dims}):
                return near
            first = first or near
    for changed in beyond if first is None else ():
        near = msgspec.structs.replace(problem, dims=followed(way, {**problem.dims, **changed}), strides={})
        if all_of((require, *others), operator.facts(near)):
            return near
    return first


def _extents(now: Mapping[str, int], constants: Sequence[int]) -> tuple[list[dict[str, int]], list[dict[str, int]]]:
    """Extents of some dims to try, in order: by rounding, by cutting and around constants, then those beyond."""
    rounded = [{n: -(-extent // multiple) * multiple for n, extent in now.items()} for multiple in _MULTIPLES]
    close = [*rounded, *({n: min(extent, most) for n, extent in now.items()} for most in _BOUNDS)]
    close += [dict.fromkeys(now, extent) for c in constants for extent in (c - 1, c // 2 + 1)]
    # Rows of 2049 to 4096 elements that are multiples of 16, for example. They are not constants, so padding is not
    # always empty.
    close += [
        {n: c // 2 + extent for n, extent in r.items()} for c in constants for r in rounded if max(r.values()) <= c // 2
    ]
    close += [dict.fromkeys(now, c) for c in constants]
    beyond = [
        {n: c + extent for n, extent in r.items()} for c in constants if c > max(now.values()) for r in (now, *rounded)
    ]
    return close, beyond


def _pitched(operator: Operator, problem: Problem, require: Expr) -> Problem | None:
    """The problem with a pitch that has many divisors, for the rows of tensors whose strides a requirement is about."""
    strides = dict(problem.strides)
    for name in sorted({fact.split(".")[1] for fact in require.facts() if fact.startswith("stride.")}):
        shape, now = operator.shape(problem, operator.tensor(name)), operator.strides(problem, operator.tensor(name))
        *slow, fast = sorted(range(len(shape)), key=lambda axis: (-abs(now[axis]), axis))
        pad = -shape[fast] % _PITCH
        strides[name] = _padded(operator, problem, operator.tensor(name), pad, 1, (*slow, fast))
    near = msgspec.structs.replace(problem, strides=strides)
    return near if require.evaluate(operator.facts(near)) else None


def _constants(expr: Expr) -> list[int]:
    """The constants of an expression that may be extents. `next_power_of_2(D) == 4096` gives those around 4096."""
    values = [int(expr.value)] if expr.op == "const" and int(expr.value) > 1 else []
    return [*values, *(c for a in expr.args for c in _constants(a))]


def _with_pins(operator: Operator, way: Way, problem: Problem, pinned: Mapping[str, int]) -> Problem:
    """The problem with the dims, presence, attributes and fastest axes that the pinned facts say."""
    order, dtypes = dict(problem.order), dict(problem.dtypes)
    dims = followed(way, {n: pinned.get(n, extent) for n, extent in problem.dims.items()})
    present, attributes = set(problem.present), dict(problem.attributes)
    strides = {} if dims != problem.dims else dict(problem.strides)
    for fact, value in pinned.items():
        kind, _, rest = fact.partition(".")
        if kind == "present" and operator.tensor(rest).optional:
            (present.add if value else present.discard)(rest)
        elif kind == "dtype":
            dtypes[rest] = operator.dtypes[rest][value]
            if not value:
                del dtypes[rest]
        elif kind == "attribute":
            attributes[rest] = next(a for a in operator.attributes if a.name == rest).choices[value]
        elif kind == "stride" and value == 1:
            name, _, axis = rest.rpartition(".")
            now = msgspec.structs.replace(problem, order=order, strides=strides)
            if operator.canonical_strides(now, operator.tensor(name))[int(axis)] != 1:
                wanted = (*(a for a in range(operator.tensor(name).rank) if a != int(axis)), int(axis))
                if name in strides:
                    strides[name] = _padded(operator, problem, operator.tensor(name), 3, 1, wanted)
                else:
                    order[name] = wanted
    return msgspec.structs.replace(
        problem,
        dims=dims,
        order=order,
        strides=strides,
        present=tuple(sorted(present)),
        attributes=attributes,
        dtypes=dtypes,
    )
