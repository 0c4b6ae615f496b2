"""Asks one process for each target what a library's Triton functions declare, and takes the answers in."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import msgspec

from aot_tune.expr.integer_expressions import Ratio, Root
from aot_tune.render.triton.recipe import as_data
from aot_tune.spec import (
    Buffer,
    Declarations,
    Descriptor,
    DTypeOf,
    Expr,
    FragmentOf,
    Kernel,
    KernelArgument,
    Operator,
    Target,
    Tensor,
    all_of,
    dim,
    stride,
)
from aot_tune.spec.calls import dims_of_scalars
from aot_tune.spec.kernel import may_serve
from aot_tune.support.errors import BuildError, Mistakes, ToolchainError
from aot_tune.support.run_program import compiler_environment, kill_running, python_environment, python_module, run
from aot_tune.support.storage import scratch_folder
from aot_tune.triton.installed import find_triton
from aot_tune.triton.triton_messages import (
    Answer,
    FunctionRequest,
    Given,
    GivenKind,
    InspectRequest,
    ProblemFacts,
    TensorFacts,
)

Inspections = dict[str, dict[str, Declarations]]
"""By `operator/kernel`, then by target: the declarations of the kernel's function; `operator/kernel:2` of a second."""

_FAMILIES = frozenset({"cuda", "hip"})
"""Families of devices that Triton can compile for."""

_SECONDS = 300.0
_AT_ONCE = 4
"""Processes that read functions side by side, one for each target."""


_KINDS: dict[type, GivenKind] = {Buffer: "buffer", FragmentOf: "fragment"}

ROOTS = "AOT_TUNE_TEMPLATE_ROOTS"
"""The variable with the folders that may hold files of functions, separated as in PATH."""
ADDRESS_SPACE = 24 << 30
"""Bytes of address space of a process. Triton's and torch's libraries reserve most of it, but use little."""


def read_functions(
    operators: Mapping[str, Operator],
    targets: Sequence[Target],
    baselines: Sequence[Target],
    roots: Sequence[Path],
    environ: Mapping[str, str],
    imported: set[str] | None = None,
) -> tuple[Inspections, str]:
    """The declarations of all Triton kernels' functions for targets of GPUs; and why there are none.

    `baselines` are the targets that generic variants are compiled for. `imported` collects the files of a project's
    modules that are imported to read the functions.

    If Triton is missing or untested, there are no declarations, and the text says why. The kernels are left out then.

    Raises:
        BuildError: when a function cannot be read, or a generic kernel needs a Triton that cannot be used.
    """
    asked = []
    for target in (*_generic_targets(operators, targets, baselines), *targets):
        wanted = requests_of(operators, target)
        if wanted and not target.on_host:
            asked.append(InspectRequest(target=target.name, roots=[str(r) for r in roots], functions=wanted))
    try:
        told = _answers(asked, environ)
    except ToolchainError as error:
        _check_needed(operators, families={t.family for t in (*baselines, *targets)}, error=error)
        return {}, f"Triton kernels are left out: {error.what}" + (f"; {error.fix}" if error.fix else "")
    inspections: Inspections = {}
    mistakes = Mistakes()
    for request, answers in zip(asked, told, strict=True):
        for answer in answers:
            if imported is not None:
                imported.update(answer.imported)
            with mistakes.gather():
                if answer.inspection is None:
                    assert answer.fault is not None
                    raise answer.fault.error(BuildError)
                _check_effects(operators, answer.name, answer.inspection)
                inspections.setdefault(answer.name, {})[request.target] = answer.inspection
    mistakes.tell()
    return inspections, ""


def _answers(asked: Sequence[InspectRequest], environ: Mapping[str, str]) -> list[list[Answer]]:
    """The answers to each request, from processes side by side: each imports the functions' packages for seconds."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        waiting = list[Future[list[Answer]]]()
        try:
            for request in asked:
                waiting.append(pool.submit(inspect, request, environ, _SECONDS))
            return [future.result() for future in waiting]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            kill_running()
            raise


def _check_needed(operators: Mapping[str, Operator], families: set[str], error: ToolchainError) -> None:
    """Raise if a library needs Triton, because a generic variant for its devices is written in it."""
    for operator in operators.values():
        for kernel in operator.generics:
            if kernel.triton is not None and _FAMILIES & families:
                raise BuildError(
                    f"operator {operator.name!r}: its generic kernel {kernel.name!r} is a Triton function: "
                    f"{error.what}",
                    why=error.why or "every call must have a variant",
                    fix=error.fix,
                ) from error


def _check_effects(operators: Mapping[str, Operator], name: str, inspection: Declarations) -> None:
    """Raise if a function's autotuner does something around a launch that a library cannot do."""
    operator_name, _, named = name.partition("/")
    kernel_name, _, number = named.partition(":")
    operator = operators[operator_name]
    function = operator.kernel(kernel_name).triton_functions[int(number or 1) - 1]
    where = f"operator {operator_name!r}: kernel {kernel_name!r}: {function.function!r}"
    if inspection.hooks and not function.hooks_declared:
        raise BuildError(
            f"{where} has configs with a pre_hook, or an autotuner with a hook of its own",
            why="a hook is Python that would run in front of each launch, and a library has no Python at run time",
            fix="declare what it does: a descriptor's block_shape by Descriptor(block=...), outputs set to 0 by "
            "reset_to_zero. Then set hooks_declared=True",
        )
    inputs = {t.name for t in operator.tensors if not t.written}
    for argument in inspection.restore_value:
        given = function.arguments.get(argument, argument)
        tensor = given.tensor if isinstance(given, Descriptor) else given
        if isinstance(tensor, str) and tensor in inputs:
            raise BuildError(
                f"{where} changes its argument {argument!r} (restore_value), which is passed the input {tensor!r}",
                why="inputs of operators are never written, unless they are declared so",
                fix="declare the tensor with inout=True, or have the kernel write an output of its own",
            )


def with_declarations(operator: Operator, inspections: Inspections, families: Sequence[str]) -> Operator:
    """The operator with the declarations of its Triton functions. Functions without declarations are left out.

    If no target is a GPU's, nothing changes.
    """
    if all(k.triton is None for k in operator.kernels) or set(families) <= {"cpu"}:
        return operator
    kernels = []
    for kernel in operator.kernels:
        functions = kernel.triton_functions
        declared = [inspections.get(_name_of(operator, kernel, n)) for n in range(len(functions))]
        if kernel.triton is None:
            kernels.append(kernel)
        elif all(declared):
            read = tuple(f.inspected(d or {}) for f, d in zip(functions, declared, strict=True))
            kernels.append(replace(kernel, triton=read))
    return replace(operator, kernels=tuple(kernels))


def _generic_targets(
    operators: Mapping[str, Operator], targets: Sequence[Target], baselines: Sequence[Target]
) -> list[Target]:
    """The additional targets that generic variants in Triton are compiled for."""
    served = _FAMILIES if any(k.triton is not None for op in operators.values() for k in op.generics) else frozenset()
    return [t for t in baselines if t.family in served and t.name not in {u.name for u in targets}]


def requests_of(operators: Mapping[str, Operator], target: Target) -> list[FunctionRequest]:
    """What to read for a target: each operator's Triton functions that may be compiled for it."""
    requests = []
    for operator in operators.values():
        for kernel in operator.kernels:
            chosen = kernel.triton is not None and target.family in _FAMILIES
            if chosen and (kernel.generic or _allowed(kernel, target)):
                requests += [_request(operator, kernel, n, target) for n in range(len(kernel.triton_functions))]
    return requests


def _name_of(operator: Operator, kernel: Kernel, number: int) -> str:
    """What one of a kernel's functions is called in requests and answers."""
    return f"{operator.name}/{kernel.name}" + (f":{number + 1}" if number else "")


def _allowed(kernel: Kernel, target: Target) -> bool:
    """Whether the kernel's constraints that concern only the target hold."""
    facts = {f"target.{n}": v for n, v in target.facts.items()}
    return all_of(tuple(c for c in kernel.constraints if c.facts() and c.facts() <= facts.keys()), facts)


def _request(operator: Operator, kernel: Kernel, number: int, target: Target) -> FunctionRequest:
    function, problems = kernel.triton_functions[number], []
    for problem in operator.workload_for(target.family):
        facts = operator.facts(problem)
        if may_serve(kernel, facts, worthwhile=True):
            problems.append(ProblemFacts(id=problem.id, facts=facts))
    operands = {t.name: _given(operator, t.name) for t in operator.tensors}
    operands |= {s.name: _given(operator, s.name) for s in operator.scalars}
    operands |= {d: _given(operator, dim(d)) for d in operator.dims}
    return FunctionRequest(
        name=_name_of(operator, kernel, number),
        function=function.function,
        arguments={name: _given(operator, value) for name, value in function.arguments.items()},
        operands=operands,
        parameters=[p.name for p in kernel.parameters],
        problems=problems,
        pruners=function.pruners,
    )


def _given(operator: Operator, value: KernelArgument) -> Given:
    value = dims_of_scalars(operator).get(value, value) if isinstance(value, str) else value
    if isinstance(value, Expr):
        return Given(kind="integer", expr=value.data())
    if isinstance(value, (Buffer, FragmentOf, Ratio, Root)):
        return Given(kind=_KINDS.get(type(value), "quotient"))
    if isinstance(value, (Descriptor, DTypeOf)):
        named = next((t for t in operator.tensors if t.name == value.tensor), None)
        facts = _facts(operator, named) if named is not None else None
        if isinstance(value, DTypeOf):
            return Given(kind="dtype", tensor=facts)
        block = [b.data() if isinstance(b, Expr) else ["const", b] for b in value.block]
        return Given(kind="descriptor", tensor=facts, block=block)
    for tensor in operator.tensors:
        if tensor.name == value:
            return Given(kind="pointer", tensor=_facts(operator, tensor))
    default = next((s.sample for s in operator.scalars if s.name == value), None)
    return (
        Given(kind="constant", value=as_data(value))
        if default is None
        else Given(kind="scalar", value=as_data(default))
    )


def _facts(operator: Operator, tensor: Tensor) -> TensorFacts:
    variable = tensor.dtype_name in operator.dtypes
    return TensorFacts(
        name=tensor.name,
        dtypes=list(operator.dtypes.get(tensor.dtype_name, (tensor.dtype_name,))),
        dtype_fact=f"dtype.{tensor.dtype_name}" if variable else "",
        shape=[e.data() for e in tensor.shape],
        strides=[stride(tensor.name, i).data() for i in range(tensor.rank)],
        optional=tensor.optional,
    )


def template_roots(environ: Mapping[str, str]) -> list[str]:
    """The folders that `ROOTS` names."""
    return [folder for folder in environ.get(ROOTS, "").split(os.pathsep) if folder]


def child_environment(environ: Mapping[str, str], search: Sequence[str], scratch: Path) -> dict[str, str]:
    """The complete environment of a process that holds Triton.

    The process imports from `search` and writes only inside of `scratch`. It sees no GPU: questions about a device are
    answered for the target. It gets no variable that changes what Triton makes.
    """
    child = compiler_environment(environ, scratch) | python_environment(search)
    child |= dict.fromkeys(("HOME", "TRITON_HOME", "TRITON_CACHE_DIR", "XDG_CACHE_HOME"), str(scratch))
    child |= dict.fromkeys(("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"), "")
    return child | {"OMP_NUM_THREADS": "1"}


def inspect(
    request: InspectRequest, environ: Mapping[str, str], timeout: float = 300.0, search: Sequence[str] | None = None
) -> list[Answer]:
    """Read functions in a separate process. If something is wrong with one, its answer says so.

    Args:
        timeout: seconds for all of them together.
        search: folders to import from; the default is this process's.

    Raises:
        ToolchainError: when Triton is missing or untested, or when the process died.
    """
    folders = list(sys.path) if search is None else list(search)
    find_triton(folders)
    with scratch_folder() as name:
        scratch = Path(name)
        asked, answered = scratch / "request.json", scratch / "answer.json"
        asked.write_bytes(msgspec.json.encode(request))
        argv = python_module("aot_tune.triton.declarations_worker", str(asked), str(answered))
        child = child_environment(environ, folders, scratch)
        done = run(argv, folder=scratch, environ=child, timeout=timeout, memory=ADDRESS_SPACE)
        if done.timed_out or done.code != 0 or not answered.is_file():
            ended = f"took longer than {timeout:g} s" if done.timed_out else f"ended with status {done.code}"
            last = " | ".join(done.output.strip().splitlines()[-3:])
            raise ToolchainError(
                f"reading Triton functions for {request.target} {ended}: {last[-500:]}",
                why=f"functions {', '.join(f.function for f in request.functions)}",
                fix="try to import only their modules with Python, without a GPU",
            )
        return msgspec.json.decode(answered.read_bytes(), type=list[Answer])
