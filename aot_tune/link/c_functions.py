"""Generated code around the choice: what serves a call, calls like earlier ones, the C functions, loading ahead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aot_tune.link.library_records import LibrarySpec, OperatorTable, family_facts
from aot_tune.link.signature import arguments, c_string, parameters, prepared
from aot_tune.spec import Operator
from aot_tune.spec.calls import BoundDim, dims_beside_inputs

__all__ = ["render_explain", "render_functions", "render_known", "render_preload", "render_serve"]

_ODD = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio; sums of small multiples of its powers are hardly ever equal


def render_serve(table: OperatorTable) -> str:
    """`serve` finds a variant that is available here within the workspace.

    `run` runs it, and `preload` loads kernels.
    """
    op = table.operator
    loads = any(family_facts(v.candidate.target).preloads for v in table.variants)
    load = (
        "  int32_t (*ahead)() = kFunctions[variant].preload;\n"
        "  if (int32_t status = load(kOperator, kInfo[variant], ahead, c.device().device_id, loaded[variant]))\n"
        "    return status;\n"
        if loads
        else ""
    )
    given = ", ".join(f"c.t_{t.name}" for t in op.tensors)
    note = "  (void)variant;\n  (void)buffer;\n  (void)size;"
    if any(v.symbol in table.noting for v in table.variants):
        tell = f"kFunctions[variant].note({prepared(op, '(*this)')}, buffer, size)"
        note = f"  if (kFunctions[variant].note != nullptr) {tell};"
    text = f"""\
// Bytes of workspace that a variant needs.
int32_t need(const Call& c, int variant, size_t* size) {{
  *size = 0;
  return kFunctions[variant].workspace({prepared(op, "c")}, size);
}}

void Call::note(int variant, char* buffer, size_t size) const {{
{note}
}}

// The error of a variant's function, with what the variant says of a call that it cannot serve.
int32_t failed(const Call& c, int variant, const char* function, int32_t status) {{
  char note[256] = "";
  if (status == kUnavailable) c.note(variant, note, sizeof note);
  return kernel_failed(kOperator, kInfo[variant], function, status, note);
}}

// The variant that AOT_TUNE_FORCE names for the call, or -1.
int32_t forced(const Call& c, int* variant) {{
  const auto takes = [&c](int32_t i, FirstRefusal& refusal) {{ return accepts(c, i, refusal); }};
  return choose_forced(kOperator, kInfo, {len(table.variants)}, *c.backend, c.level, takes, variant);
}}

// The first ranked variant that can be had here and whose workspace fits, else the generic one.
template <typename Trace>
int32_t choose_fitting(const Call& c, Trace& trace, size_t limit, int* variant, size_t* size) {{
  Fitting<Trace, decltype(&need)> fitting{{trace, &need, limit}};
  *variant = choose(c, fitting);
  return need(c, *variant, size);
}}

// The variant of a call and its workspace; `first` tells whether every such call that has room for it gets it.
int32_t serve(const Call& c, const aot_tune_exec* exec, int* variant, size_t* size, bool* first) {{
  *variant = -1;
  if (is_forced() && !c.hollow) {{
    if (int32_t status = forced(c, variant)) return status;
  }}
  const bool named = *variant >= 0;
  NoTrace trace;
  if (!named) *variant = choose(c, trace);
  int32_t status = need(c, *variant, size);
  *first = !named && status == 0 && *size <= workspace_limit(exec);
  if (!named && (status == kUnavailable || *size > workspace_limit(exec)))
    status = choose_fitting(c, trace, workspace_limit(exec), variant, size);
  return status == 0 ? AOT_TUNE_OK : failed(c, *variant, "workspace", status);
}}

// Launches a variant that needs `size` bytes of workspace.
int32_t launch(const Call& c, const aot_tune_exec* exec, int variant, size_t size) {{
{load}  Workspace workspace;
  if (int32_t status = take_workspace(kOperator, *c.backend, c.device(), exec, size, &workspace)) return status;
  if (exec != nullptr && workspace.memory != nullptr && workspace.memory == exec->workspace) {{
    const DLTensor* const given[] = {{{given}}};
    if (int32_t status = check_workspace(kOperator, given, c.view, workspace.memory, size)) return status;
  }}
  void* stream = exec != nullptr ? exec->stream : nullptr;
  const int32_t status = kFunctions[variant].launch({prepared(op, "c")}, workspace.memory, size, stream);
  return status == 0 ? AOT_TUNE_OK : failed(c, variant, "launch", status);
}}"""
    return f"{text}\n\n{_preload(table)}" if loads else text


def _preload(table: OperatorTable) -> str:
    count = len(table.variants)
    lines = [
        "// Loads the variants that calls on a device may get.",
        "int32_t preload(const Backend& backend, int32_t level, int32_t device_id) {",
        f"  bool wanted[{count}];",
        f"  for (int i = 0; i < {count}; ++i) wanted[i] = false;",
    ]
    for family in (f for f in table.families if family_facts(f).preloads):
        lines += _preload_generics(table, family)
    lines.append("  switch (table_for(&backend, level)) {")
    for index, target in enumerate(table.tables):
        if family_facts(target.target).preloads and target.used:
            named = "".join(f" wanted[{i}] =" for i in target.used)
            lines += [f"    case {index}:", f"     {named} true;", "      break;"]
    lines += [
        "    default:",
        "      break;",
        "  }",
        f"  for (int i = 0; i < {count}; ++i) {{",
        "    if (!wanted[i]) continue;",
        "    int32_t (*ahead)() = kFunctions[i].preload;",
        "    if (int32_t status = load(kOperator, kInfo[i], ahead, device_id, loaded[i])) return status;",
        "  }",
        "  return AOT_TUNE_OK;",
        "}",
    ]
    return "\n".join(lines)


def _preload_generics(table: OperatorTable, family: str) -> list[str]:
    """Marks the generic variants that a device of a family runs, or fails if there are none."""
    generics = table.generics(family)
    targets = c_string(", ".join(table.targets(family)))
    fail = f"      return too_old(kOperator, device, level, kInfo[{generics[0]}], {targets});"
    if table.bounded(family) or len({table.variants[i].target.level for i in generics}) > 1:
        marks = [f"    wanted[{i}] = runs_on(kInfo[{i}], level);" for i in generics]
        body = [*marks, f"    if ({' && '.join(f'!wanted[{i}]' for i in generics)})", fail]
    else:
        marks = [f"   {''.join(f' wanted[{i}] =' for i in generics)} true;"]
        body = [f"    if (level < kInfo[{generics[0]}].level)", fail, *marks]
    return [
        f"  if (&backend == &backend_{family}) {{",
        "    const DLDevice device = {static_cast<DLDeviceType>(backend.device_type), device_id};",
        *body,
        "  }",
    ]


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


def render_explain(table: OperatorTable) -> str:
    """`explain` of an operator."""
    op = table.operator
    lines = [
        "int32_t explain(const Call& c, const aot_tune_exec* exec, Text& text) {",
        '  text.add("operator: %s\\n", kOperator.name);',
        "  explain_device(text, *c.backend, c.level);"
        if any(map(table.bounded, table.families))
        else '  text.add("device: %s level %d\\n", c.backend->family, static_cast<int>(c.level));',
    ]
    for d in op.dims:
        lines.append(f'  text.add("dim: {d}=%lld\\n", static_cast<long long>(c.d_{d}));')
    for v in op.dtypes:
        lines.append(f'  text.add("dtype: {v}=%s\\n", kDTypes_{v}[c.y_{v}].name);')
    tensors = ", ".join(f"c.t_{t.name}" for t in op.tensors)
    lines += [
        f"  const DLTensor* const given[] = {{{tensors}}};",
        "  explain_tensors(text, kOperator, given, c.view);",
    ]
    for a in op.attributes:
        lines.append(f'  text.add("attribute: {a.name}=%s\\n", kChoices_{a.name}[c.v_{a.name}]);')
    lines += [
        "  if (c.empty) {",
        '    text.add("why: no output has elements, so nothing runs\\n");',
        "    return AOT_TUNE_OK;",
        "  }",
        "  const int table = c.hollow ? -1 : table_for(c.backend, c.level);",
    ]
    if table.tables:
        targets = ", ".join(c_string(t.target) for t in table.tables)
        lines += [
            f"  constexpr const char* kTargets[] = {{{targets}}};",
            '  if (table >= 0) text.add("table: %s\\n", kTargets[table]);',
        ]
        if any(t.processors for t in table.tables):
            tuned = ", ".join(str(t.processors) for t in table.tables)
            here = "*c.backend, c.device().device_id"
            lines += [
                f"  constexpr int32_t kProcessors[] = {{{tuned}}};",
                f"  if (table >= 0) explain_processors(text, {here}, kProcessors[table]);",
            ]
    return "\n".join([*lines, *_explain_choice("an input has no elements" + _or_zero(op))])


def _or_zero(op: Operator) -> str:
    """What to say of dims that no input tells to be 0."""
    beside = dims_beside_inputs(op)
    return f", or a dim is 0 ({', '.join(beside)})" if beside else ""


def _explain_choice(hollow: str) -> list[str]:
    return [
        "  const bool tuned = is_tuned(c) != 0;",
        '  text.add("tuned: %s\\n", tuned ? "yes" : "no");',
        "  if (!tuned && table >= 0) tell_nearest(c, text);",
        "  int choice = -1;",
        "  size_t size = 0;",
        "  if (is_forced() && !c.hollow) {",
        "    if (int32_t status = forced(c, &choice)) return status;",
        "  }",
        "  const bool named = choice >= 0;",
        "  TextTrace trace{&text};",
        "  const int32_t status = named ? need(c, choice, &size)",
        "                               : choose_fitting(c, trace, workspace_limit(exec), &choice, &size);",
        '  if (status != 0) return failed(c, choice, "workspace", status);',
        "  const bool ruled = trace.rule != nullptr && trace.rule->names(kInfo[choice]);",
        '  const char* why = named                 ? "named by AOT_TUNE_FORCE"',
        '                    : ruled               ? "named by a rule of AOT_TUNE_OVERRIDE"',
        '                    : trace.foresaw(kInfo[choice]) ? "expected to be the fastest of those whose guards hold"',
        '                    : choice != c.generic ? "first of the variants ranked for such calls whose guards hold"',
        f'                    : c.hollow            ? "generic: {hollow}"',
        '                    : table < 0           ? "generic: no tuned variants for this level of the device"',
        '                                          : "generic: no variant ranked for such calls accepts this one";',
        '  char note[256] = "";',
        "  c.note(choice, note, sizeof note);",
        "  explain_choice(text, kInfo[choice], size, note, why);",
        "  return AOT_TUNE_OK;",
        "}",
    ]


def render_functions(spec: LibrarySpec, table: OperatorTable) -> str:
    """The public C functions of an operator."""
    op = table.operator
    declared = ", ".join(parameters(op))
    passed = ", ".join(arguments(op))
    scope = f"operator_{op.name}"
    given = ", ".join(t.name for t in op.tensors)
    options = [s.name for s in op.scalars] + [a.name for a in op.attributes]
    recalled = [f"&known_->tensors[{i}].tensor" for i in range(len(op.tensors))]
    tensors = [f"{t.name} ? {r} : nullptr" if t.optional else r for t, r in zip(op.tensors, recalled, strict=True)]
    again = ", ".join([*tensors, *options])
    options_text = ", ".join(f"aot_tune::bits_of({name})" for name in options) or "0"
    head = f'extern "C" AOT_TUNE_PUBLIC int32_t {spec.prefix}_{op.name}'
    switches = any(not family_facts(f).on_host for f in table.families)
    entered = ["  Entered entered_;", "  status_ = entered_.enter(*call_.backend, call_.device().device_id);"]
    entered += ["  if (status_ != AOT_TUNE_OK) return status_;"]
    enter = "\n".join(entered) + "\n" if switches else ""
    on_host = any(family_facts(f).on_host for f in table.families)
    threads = "  const aot_tune::CallThreads threads_;\n" if on_host else ""
    arrays = f"""\
  const DLTensor* const given_[] = {{{given}}};
  const uint64_t options_[] = {{{options_text}}};"""
    return f"""
namespace {{
namespace {scope} {{

// A call that is like none before it.
__attribute__((noinline)) int32_t call_anew({declared}, const aot_tune_exec* exec, uint64_t number_) {{
  Call call_;
  int32_t status_ = {scope}::read(call_, true, {passed});
  if (status_ != AOT_TUNE_OK) return status_;
  const bool traced_ = aot_tune::is_traced();
  if (call_.empty) {{
    if (traced_) {scope}::trace_call(call_, false);
    return AOT_TUNE_OK;
  }}
{enter}{arrays}
  // what is counted is not remembered, so that each such call comes here
  status_ = {scope}::run(call_, exec, given_, options_, traced_ ? 0 : number_);
  if (traced_ && status_ == AOT_TUNE_OK) {scope}::trace_call(call_, aot_tune::is_capturing(*call_.backend, exec));
  if (aot_tune::warns_of_unseen() && status_ == AOT_TUNE_OK) {scope}::warn(call_);
  return status_;
}}

}}  // namespace {scope}
}}  // namespace

{head}({declared}, const aot_tune_exec* exec) {{
{threads}  const uint64_t number_ = {scope}::number_of({passed});
  auto* const calls_ = {scope}::thread_calls();
  {scope}::Remembered* const known_ = number_ != 0 && calls_ != nullptr ? calls_->find(number_) : nullptr;
  if (__builtin_expect(known_ != nullptr, 1)) {{
{arrays.replace("  const", "    const")}
    if (__builtin_expect(known_->recall(given_, options_), 1)) {{
      calls_->missed = 0;
      int32_t status_;
      if (__builtin_expect(known_->is_ready(), 1)) {{
        status_ = known_->launch({again}, nullptr, 0, exec != nullptr ? exec->stream : nullptr);
        if (__builtin_expect(status_ == 0, 1)) return status_;
        return {scope}::repeat_failed({passed}, *known_, status_);
      }}
      if ({scope}::repeat({passed}, exec, *known_, &status_)) return status_;
    }}
  }}
  return {scope}::call_anew({passed}, exec, number_);
}}

{head}_workspace({declared}, size_t* workspace_size) {{
  {scope}::Call call_;
  if (workspace_size == nullptr) {_no_place(op, "workspace", "workspace_size")}
  *workspace_size = 0;
{threads}  int32_t status_ = {scope}::read(call_, false, {passed});
  if (status_ != AOT_TUNE_OK || call_.empty) return status_;
{enter}  int variant_;
  bool first_;
  return {scope}::serve(call_, nullptr, &variant_, workspace_size, &first_);
}}

{head}_explain({declared}, const aot_tune_exec* exec, char* buffer, size_t size) {{
  {scope}::Call call_;
  if (buffer == nullptr && size > 0) {_no_place(op, "explain", "buffer")}
  Text text_(buffer, size);
{threads}  int32_t status_ = {scope}::read(call_, false, {passed});
  if (status_ != AOT_TUNE_OK) return status_;
{enter}  return {scope}::explain(call_, exec, text_);
}}

{head}_is_tuned({declared}, int32_t* tuned) {{
  {scope}::Call call_;
  if (tuned == nullptr) {_no_place(op, "is_tuned", "tuned")}
  *tuned = 0;
  int32_t status_ = {scope}::read(call_, false, {passed});
  if (status_ != AOT_TUNE_OK) return status_;
  *tuned = {scope}::is_tuned(call_);
  return AOT_TUNE_OK;
}}
"""


def _no_place(op: Operator, question: str, where: str) -> str:
    """Refuses a question whose answer has no place."""
    return f'return fail(AOT_TUNE_ERROR_NULL, "{op.name}: {question} has nowhere to write to: {where} is NULL");'


def render_preload(spec: LibrarySpec, families: Sequence[str]) -> str:
    """The public function that loads what the library has for a device."""
    backends = ", ".join(f"&backend_{f}" for f in families)
    loading = [
        t.operator.name for t in spec.operators if any(family_facts(v.candidate.target).preloads for v in t.variants)
    ]
    operators = ", ".join(f"operator_{name}::preload" for name in loading)
    rows = f"  static const Preload operators[] = {{{operators}}};\n" if loading else ""
    return f"""\
extern "C" AOT_TUNE_PUBLIC int32_t {spec.prefix}_preload(int32_t device_type, int32_t device_id) {{
  static const Backend* const backends[] = {{{backends}}};
{rows}  const DLDevice device = {{static_cast<DLDeviceType>(device_type), device_id}};
  return preload_all(backends, {len(families)}, device, {"operators" if loading else "nullptr"}, {len(loading)});
}}
"""
