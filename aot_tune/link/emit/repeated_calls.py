"""Generated code for calls like earlier ones, which get the same variants as those (runtime/known.h)."""

from __future__ import annotations

from collections.abc import Mapping

from aot_tune.link.emit.signature import arguments, parameters
from aot_tune.link.library_records import OperatorTable
from aot_tune.spec import Operator
from aot_tune.spec.bound_dims import BoundDim

__all__ = ["render_known"]

_ODD = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio; sums of small multiples of its powers are hardly ever equal


def render_known(table: OperatorTable, bound: Mapping[str, BoundDim]) -> str:
    """Where an operator's calls are remembered, `repeat` for a call like one of them, and `run` for other calls.

    `bound` says what each dim is learned from.
    """
    op = table.operator
    passed = [s.name for s in op.scalars] + [a.name for a in op.attributes]
    listed, names = ", ".join(parameters(op)), ", ".join(arguments(op))
    scope = f"operator_{op.name}"
    settled = ", ".join(str(v.symbol in table.settled).lower() for v in table.variants)
    return f"""\
constexpr bool kSettled[] = {{{settled}}};

using Remembered = Known<kOperator, {max(len(passed), 1)}, decltype(Functions::launch)>;
thread_local void* known_calls;  // the thread's, from the first that is remembered on

KnownCalls<Remembered>* thread_calls() {{ return static_cast<KnownCalls<Remembered>*>(known_calls); }}

{_number(op, bound)}

{_fill(op)}

bool repeat(const Call& c, const aot_tune_exec* exec, const Remembered& known, int32_t* status) {{
  size_t size = known.size;
  Entered entered;
  *status = entered.enter(*c.backend, c.device().device_id);
  if (*status != AOT_TUNE_OK) return true;
  if (!known.settled && need(c, known.variant, &size) != 0) return false;
  if (size > workspace_limit(exec)) return false;
  *status = launch(c, exec, known.variant, size);
  return true;
}}

// A call that is like the one of `known_` where memory is got, something may load, or the thread's device is another
// one; false when other variants are to be tried.
__attribute__((noinline)) bool repeat({listed}, const aot_tune_exec* exec,
                                      Remembered& known_, int32_t* status_) {{
  Call call_;
  {scope}::fill(call_, known_, {names});
  return {scope}::repeat(call_, exec, known_, status_);
}}

// The error of one that was launched as the thread was.
__attribute__((noinline)) int32_t repeat_failed({listed}, Remembered& known_, int32_t status_) {{
  Call call_;
  {scope}::fill(call_, known_, {names});
  return {scope}::failed(call_, known_.variant, "launch", status_);
}}

// A call that was read, in the time of `Entered`; it may be remembered, if it has a number.
int32_t run(const Call& c, const aot_tune_exec* exec, const DLTensor* const* given, const uint64_t* options,
            uint64_t number) {{
  int variant;
  size_t size;
  bool first;
  if (int32_t status = serve(c, exec, &variant, &size, &first)) return status;
  if (int32_t status = launch(c, exec, variant, size)) return status;
  if (!first || !c.plain || number == 0) return AOT_TUNE_OK;
  void* const calls = thread_memory(sizeof(KnownCalls<Remembered>), &known_calls);
  Remembered* const known = calls != nullptr ? thread_calls()->room(number) : nullptr;
  if (known == nullptr) return AOT_TUNE_OK;
  known->keep(given, options, c.view);
  known->variant = variant;
  known->launch = kFunctions[variant].launch;
  known->backend = c.backend;
  known->settled = kSettled[variant];
  known->size = size;
  known->context = c.backend->context != nullptr ? c.backend->context() : nullptr;
  known->direct = known->settled && size == 0 && known->context != nullptr;
  return AOT_TUNE_OK;
}}"""


def _number(op: Operator, bound: Mapping[str, BoundDim]) -> str:
    read = dict.fromkeys(b.tensor for b in bound.values() if b.tensor)
    optional = [t.name for t in op.tensors if t.optional]
    named = {*read, *optional, *(a.name for a in op.attributes), *(b.scalar for b in bound.values())}
    lines = [
        "// A number for a call that most others do not have: of its dims, attributes, optional tensors and where the"
    ]
    lines += ["// first ones lie within 64 bytes. 0 where it is no legal call."]
    lines += [f"uint64_t number_of({', '.join(parameters(op))}) {{"]
    lines += [f"  (void){name};" for name in arguments(op) if name not in named]
    for name in read:
        wrong = f"{name} == nullptr || {name}->ndim != {op.tensor(name).rank} || {name}->shape == nullptr"
        lines.append(f"  if ({wrong}) return 0;")
    values = [b.scalar or f"{b.tensor}->shape[{b.axis}]" for b in bound.values()]
    values += [f"aot_tune::place_of(*{name})" for name in read]
    values += [a.name for a in op.attributes] + [f"({name} != nullptr)" for name in optional]
    terms = [f"static_cast<uint64_t>({v}) * UINT64_C({pow(_ODD, i + 1, 2**64):#x})" for i, v in enumerate(values)]
    return "\n".join([*lines, f"  return ({' + '.join(terms) or '0'}) | 1;", "}"])


def _fill(op: Operator) -> str:
    lines = ["// A call that is like one that is known, as far as it takes to launch it."]
    lines += [
        f"void fill(Call& c_, Remembered& known_, {', '.join(parameters(op))}) {{",
        "  c_.backend = known_.backend;",
    ]
    for i, tensor in enumerate(op.tensors):
        view = f"&known_.tensors[{i}].tensor"
        lines += [] if tensor.optional else [f"  (void){tensor.name};"]
        lines.append(f"  c_.t_{tensor.name} = {f'{tensor.name} ? {view} : nullptr' if tensor.optional else view};")
        lines.append(f"  known_.view({i}, &c_.view[{i}]);")
    lines += [f"  c_.v_{name} = {name};" for name in [*(s.name for s in op.scalars), *(a.name for a in op.attributes)]]
    return "\n".join([*lines, "}"])
