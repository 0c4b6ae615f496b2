"""Reads the sources of a library's functions, and checks the arguments for them before anything is compiled."""

from __future__ import annotations

import dataclasses
import difflib
import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePath

from aot_tune.expr.integer_expressions import Expr
from aot_tune.spec.kernel import Kernel
from aot_tune.spec.names import check_among
from aot_tune.spec.native_function import (
    Code,
    CudaFunction,
    Launcher,
    NativeArgument,
    NativeFunction,
    SourceFunction,
    Stream,
    included_names,
    source_functions,
    template_names,
    words,
)
from aot_tune.spec.operator import Operator
from aot_tune.spec.targets import refuse_device_facts
from aot_tune.spec.triton_function import DTypeOf
from aot_tune.support.errors import Mistakes, SpecError, did_you_mean
from aot_tune.support.installed_paths import enclosing_folders, project_folder


def with_sources(operator: Operator, folder: Path) -> Operator:
    """The operator with the sources of its kernels' functions, and with absolute paths of folders and libraries.

    Raises:
        SpecError: one error for everything that is wrong: a missing file or function, or arguments that do not fit the
            function's parameters.
    """
    mistakes, kernels = Mistakes(), list(operator.kernels)
    for number, kernel in enumerate(kernels):
        with mistakes.gather():
            kernels[number] = _with_paths(kernel, folder, f"operator {operator.name!r}: kernel {kernel.name!r}")
        if not kernel.functions:
            continue
        where = f"operator {operator.name!r}: kernel {kernel.name!r}"
        with mistakes.gather():
            loaded = tuple(_loaded(f, kernels[number], folder, where) for f in kernel.functions)
            for function in loaded:
                _check_arguments(operator, kernel, function, f"{where}: {function.function!r}")
            _check_macros(kernel, loaded, where)
            kernels[number] = dataclasses.replace(kernels[number], function=loaded)
    mistakes.tell()
    same = all(kernel is other for kernel, other in zip(kernels, operator.kernels, strict=True))
    return operator if same else dataclasses.replace(operator, kernels=tuple(kernels))


def package_folder(name: str) -> Path:
    """The folder of an installed package, for sources and headers that it brings. The package is not imported.

    Raises:
        SpecError: when it is not installed.
    """
    try:
        package = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        package = None
    folders = list(package.submodule_search_locations or ()) if package is not None else []
    if not folders:
        raise SpecError(
            f"there is no installed package {name!r}",
            why="its sources or headers are needed",
            fix=f"pip install it, or name it in `requires` of [build-system]: {name}",
        )
    return Path(folders[0])


def _find(path: str, folder: Path, where: str) -> Path:
    places = enclosing_folders(folder)
    tried = [Path(path)] if Path(path).is_absolute() else [p / path for p in places]
    file = next((p for p in tried if p.is_file()), None)
    if file is None:
        top = places[-1]
        same = (
            sorted(str(p.relative_to(top)) for p in top.rglob(Path(path).name))[:3]
            if not Path(path).is_absolute()
            else []
        )
        raise SpecError(
            f"{where}: there is no file {path!r}",
            why=f"looked below {', '.join(str(p) for p in places)}" if not Path(path).is_absolute() else "",
            fix=f"write {same[0]!r}" if same else "give its path below the project's folder, or an absolute one",
        )
    return file.resolve()


def _with_paths(kernel: Kernel, folder: Path, where: str) -> Kernel:
    """The kernel with absolute paths of its include folders and of libraries that are given as paths."""
    options = kernel.compile
    if not options.include_directories and not options.libraries:
        return kernel
    folders = tuple(str(_folder(d, folder, where)) for d in options.include_directories)
    libraries = tuple(str(_library(lib, folder, where)) for lib in options.libraries)
    resolved = dataclasses.replace(options, include_directories=folders, libraries=libraries)
    return dataclasses.replace(kernel, compile=resolved)


def _folder(given: str | PurePath, folder: Path, where: str) -> Path:
    path = Path(given)
    tried = [path] if path.is_absolute() else [p / path for p in enclosing_folders(folder)]
    directory = next((p for p in tried if p.is_dir()), None)
    if directory is None:
        raise SpecError(
            f"{where}: there is no include folder {str(given)!r}",
            why=f"looked for {', '.join(map(str, tried))}",
            fix="give its path below the project's folder, or an absolute one",
        )
    return directory.resolve()


def _library(given: str | PurePath, folder: Path, where: str) -> str | PurePath:
    if isinstance(given, str) and "/" not in given and not given.endswith((".so", ".a")):
        return given
    return _find(str(given), folder, where)


def _loaded(function: NativeFunction, kernel: Kernel, folder: Path, where: str) -> NativeFunction:
    path = _find(function.path, folder, where)
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    folders = (path.parent, *map(Path, kernel.compile.include_directories))
    others = list(_headers(text, folders))
    every = [f for source in (text, *others) for f in source_functions(source)]
    missing = [name for name in included_names(text) if not any((f / name).is_file() for f in folders)]
    declared = _declared(function, every, (text, *others), where, missing)
    seen = {w for t in (text, *others) for w in words(t)}
    seen -= {
        n for t in (text, *others) for n in template_names(t)
    }  # a macro with the name of a template's parameter would break the source
    for header in _headers(text, folders, in_angles=True) if set(function.macros or ()) - seen else ():
        seen |= words(header) & set(function.macros or ())
    top = project_folder(folder)
    relative = str(path.relative_to(top)) if path.is_relative_to(top) else path.name
    return dataclasses.replace(
        function, text=text, place=relative, declared=declared, seen=tuple(sorted(seen)), folder=str(path.parent)
    )


def _headers(text: str, folders: Sequence[Path], *, in_angles: bool = False) -> Iterable[str]:
    """Texts of the headers that a source includes in quotes, directly or through others, if their folders are known."""
    waiting, read = list(included_names(text, in_angles=in_angles)), set[str]()
    while waiting:
        name = waiting.pop()
        path = next((p for p in (f / name for f in folders) if p.is_file()), None)
        if name in read or path is None:
            continue
        read.add(name)
        header = path.read_text(encoding="utf-8-sig", errors="replace")
        names = included_names(header, in_angles=in_angles)
        waiting += [*(str(Path(name).parent / n) for n in names), *names]
        yield header


def _declared(
    function: NativeFunction, every: Sequence[SourceFunction], texts: Sequence[str], where: str, missing: Sequence[str]
) -> SourceFunction | None:
    """A source's declaration of a function; None if a macro makes the function and all arguments are given in order."""
    wanted = isinstance(function, CudaFunction)
    named = [f for f in every if f.name == function.name or f.name.endswith(f"::{function.name}")]
    fitting = [f for f in named if f.is_kernel == wanted]
    if fitting:  # among overloads, the one that takes the arguments
        chosen = next((f for f in fitting if _takes(f, function)), fitting[0])
        same = [f for f in fitting if (f.name, f.parameters) == (chosen.name, chosen.parameters)]
        return dataclasses.replace(chosen, defaults={p: d for f in same for p, d in f.defaults.items()})
    if named:
        raise SpecError(
            f"{where}: {named[0].name!r} in {function.path} is {'no' if wanted else 'a'} __global__ function",
            fix="declare it by " + ("Launcher" if wanted else "CudaFunction, with its grid and block"),
        )
    in_order = not isinstance(function.arguments, Mapping) and function.arguments
    if in_order and any(function.name.rpartition("::")[2] in words(text) for text in texts):
        return None
    names = [f.name for f in every if f.is_kernel == wanted]
    raise SpecError(
        f"{where}: there is no function {function.name!r} in {function.path}",
        why="a function is looked for in the file and in headers that it includes in quotes"
        + (f". NOT FOUND of these: {', '.join(missing)}; name their folders in include_directories" if missing else ""),
        fix=did_you_mean(function.name, names)
        or "name a function of the file. If a macro makes the function, list its arguments in order, as a tuple",
    )


def _takes(declared: SourceFunction, function: NativeFunction) -> bool:
    given, template = function.arguments, function.template
    fits = (
        set(given) <= set(declared.parameters) if isinstance(given, Mapping) else len(given) == len(declared.parameters)
    )
    if isinstance(template, Mapping):
        return fits and set(template) <= set(declared.template)
    return fits and len(template) <= len(declared.template)


def _check_arguments(operator: Operator, kernel: Kernel, function: NativeFunction, where: str) -> None:
    declared, given = function.declared, function.arguments
    names = _names(operator)
    parameters = {p.name for p in kernel.parameters}
    if declared is not None and isinstance(given, Mapping):
        for name in given:
            check_among(name, declared.parameters, f"{where} has no parameter {name!r}")
        for position, name in enumerate(declared.parameters):
            if not {name} & {*given, *names, *declared.defaults} and not function.is_stream(name, kernel.backend):
                raise SpecError(
                    f"{where}: nothing is passed as parameter {name or position!r}",
                    why="no tensor, scalar, attribute or dim has its name",
                    fix=f"add {name!r} to the arguments" if name else "list all arguments in order, as a tuple",
                )
    elif declared is not None and len(given) != len(declared.parameters):
        raise SpecError(
            f"{where} has {len(declared.parameters)} parameters, and {len(given)} arguments are listed",
            fix=f"list one for each of {', '.join(declared.parameters)}",
        )
    passed = [part for _, part in function.parts()]
    named = declared.parameters if declared is not None and isinstance(given, Mapping) else ()
    if (
        isinstance(function, Launcher)
        and kernel.backend == "nvcc"
        and "<<<" in function.text
        and declared is not None
        and not any(isinstance(p, Stream) or (isinstance(p, Code) and "stream" in p.text.lower()) for p in passed)
        and not any(function.is_stream(name, kernel.backend) for name in named)
    ):
        raise SpecError(
            f"{where} gets no stream",
            why="what it launches must run after what the caller has launched on the stream of the call",
            fix='pass it as the parameter that takes it: {"name": Stream()}. If none does, declare what it launches by '
            "CudaFunction, or write a launcher that takes one",
        )
    macros = parameters - function.own_parameters() - _taken(function)
    for name in sorted(macros if function.macros is None else function.macros):
        if name in names or (declared is not None and name in declared.parameters):
            raise SpecError(
                f"{where}: {name!r} is passed twice, as a macro and as an argument",
                why="the macro would replace the argument's name in the source",
                fix="rename the kernel's parameter, or give the macro another name: macros={...}",
            )
    _check_template(kernel, function, where)
    for what, part in function.parts():
        _check_part(operator, part, f"{where}: {what}")
    for what, expr in function.expressions():
        of_call = not what.startswith(("template", "macro"))
        _check_facts(operator, kernel, expr.facts(), f"{where}: {what}", of_call=of_call)
        if not of_call:
            _check_compiled_in(operator, kernel, expr, f"{where}: {what}")


def _check_template(kernel: Kernel, function: NativeFunction, where: str) -> None:
    declared, given = function.declared, function.template
    if declared is None:
        return
    if not isinstance(given, Mapping):
        if len(given) > len(declared.template):
            raise SpecError(
                f"{where}: {len(given)} template arguments for {len(declared.template)} parameters of the template",
                fix="list as many, or write a dict by name",
            )
        given = dict(zip(declared.template, given, strict=False))
    for name in given:
        check_among(name, declared.template, f"{where}: its template has no parameter {name!r}")
    parameters = {p.name for p in kernel.parameters}
    open_ = [n for n in declared.template if n not in given and n not in parameters]
    needed = [n for n in open_ if n not in declared.defaulted]
    if needed:
        raise SpecError(
            f"{where}: nothing is given for {needed[0]!r} of its template",
            why="no parameter of the kernel has its name, and it has no default",
            fix=f'add it: template={{{needed[0]!r}: ...}}, such as DTypeOf("x") or parameter("BLOCK")',
        )


def _check_part(operator: Operator, given: NativeArgument, where: str) -> None:
    if isinstance(given, DTypeOf) and given.tensor not in {t.name for t in operator.tensors}:
        raise SpecError(
            f"{where}: there is no tensor {given.tensor!r}", fix=did_you_mean(given.tensor, _names(operator))
        )
    if isinstance(given, str) and given not in _names(operator):
        raise SpecError(
            f"{where}: {given!r} is not a tensor, scalar, attribute or dim",
            fix=f"{did_you_mean(given, _names(operator))}; for an expression of C++ write Code({given!r})",
        )


def _check_facts(operator: Operator, kernel: Kernel, facts: Iterable[str], where: str, *, of_call: bool) -> None:
    available = {f"parameter.{p.name}" for p in kernel.parameters if not p.has_fractions}
    available |= {fact for fact in operator.fact_names() if not fact.startswith("alignment.")}
    if of_call:
        available.add("device.multiprocessors")
    refuse_device_facts(set(facts) - available, where)
    for fact in sorted(facts):
        if fact not in available and not fact.startswith("target."):
            kind, _, name = fact.rpartition(".")
            raise SpecError(
                f"{where} uses {fact!r}, which is {'no dim' if not kind else 'not known'} here",
                fix=did_you_mean(fact, available) or (f"declare the dim {name!r}" if not kind else ""),
            )


def _check_compiled_in(operator: Operator, kernel: Kernel, expr: Expr, where: str) -> None:
    """Raise for an expression that is compiled in, but has a fact that no guard and no pin may make a constant."""
    known = {fact for guard in (*kernel.requires, *operator.legal) for fact in guard.facts()}
    known |= {dim for dims in kernel.pins.values() for dim in dims}
    if any(f not in known and not f.startswith(("parameter.", "target.", "dtype.")) for f in expr.facts()):
        raise SpecError(
            f"{where} is {expr.key()}, which only a call knows",
            why="it is compiled in",
            fix="make it a constant by `requires`, such as dim('N') == 128, or by `pins`",
        )


def _check_macros(kernel: Kernel, functions: Sequence[NativeFunction], where: str) -> None:
    """Raise for a parameter that no source and no expression uses, because all of its values give the same kernel."""
    used = {fact for f in functions for _, e in f.expressions() for fact in e.facts()}
    macros: dict[str, NativeArgument] = {}
    for function in functions:
        if function.declared is not None:
            used |= {f"parameter.{n}" for n in function.declared.template}
        for name, value in (function.macros or {}).items():
            if repr(macros.setdefault(name, value)) != repr(value):
                raise SpecError(
                    f"{where}: its functions have different values for the macro {name!r}",
                    why="the functions of a kernel are compiled as one source",
                    fix="give each a macro of its own name, or a template parameter",
                )
            if name not in function.seen:
                raise SpecError(
                    f"{where}: {function.place} never uses the macro {name!r}",
                    why="neither the file nor the headers beside it name it",
                    fix=_near(name, function.seen) or "leave it out of `macros`",
                )
    used |= {f"parameter.{name}" for name in kernel.pins}
    for parameter in kernel.parameters:
        if f"parameter.{parameter.name}" in used or any(
            f.macros is None and parameter.name in f.seen for f in functions
        ):
            continue
        places = ", ".join(dict.fromkeys(f.place for f in functions))
        seen = sorted({w for f in functions for w in f.seen})
        raise SpecError(
            f"{where}: {places} never uses the macro {parameter.name!r}",
            why="each parameter of the kernel becomes a macro. This one is in neither the file nor the headers beside "
            "it, and no expression of the launch uses it",
            fix=_near(parameter.name, seen)
            or "leave the parameter out. If a header in <> uses the macro, name it in `macros`",
        )


def _near(word: str, choices: Sequence[str]) -> str:
    """A remedy, if one of many choices is similar."""
    return did_you_mean(word, choices) if difflib.get_close_matches(word, choices, n=1) else ""


def _taken(function: NativeFunction) -> set[str]:
    """Parameters that only expressions use. They become no macros unless the source has their names."""
    facts = {fact for _, e in function.expressions() for fact in e.facts()}
    return {f.removeprefix("parameter.") for f in facts if f.removeprefix("parameter.") not in function.seen}


def _names(operator: Operator) -> list[str]:
    return [*operator.arguments, *operator.dims]
