"""How all C++ and CUDA sources of a library are compiled and linked, as CMake says it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from aot_tune.compile import toolchain_for
from aot_tune.spec import CompileOptions, Operator
from aot_tune.spec.targets import check_option
from aot_tune.support.errors import BuildError, Mistakes, SpecError, ToolchainError
from aot_tune.support.installed_paths import PACKAGE

_LANGUAGE = re.compile(r"\$<\$<COMPILE_LANGUAGE:(?P<languages>[A-Z,]+)>:(?P<option>.+)>\Z", re.DOTALL)
_LANGUAGES = {"cxx": "CXX", "nvcc": "CUDA"}


class CompileSettings(msgspec.Struct, frozen=True, kw_only=True):
    """CMake's lists: folders, `NAME` or `NAME=VALUE`, options, names or files of libraries.

    An option may apply to one language, as `$<$<COMPILE_LANGUAGE:CUDA>:--use_fast_math>` does.
    """

    include_directories: tuple[str, ...] = ()
    definitions: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()

    def for_backend(self, backend: str) -> CompileOptions:
        """The settings for the sources of a backend. Raises SpecError for what is malformed or not allowed."""
        pairs = (definition.removeprefix("-D").partition("=") for definition in self.definitions)
        return CompileOptions(
            include_directories=self.include_directories,
            definitions={name: value if equals else None for name, equals, value in pairs},
            options=tuple(self.options_for(backend)),
            libraries=self.libraries,
        )

    def by_backend(self) -> dict[str, CompileOptions]:
        """The settings for the sources of each backend."""
        return {backend: self.for_backend(backend) for backend in _LANGUAGES}

    def with_more(self, other: CompileSettings) -> CompileSettings:
        """These settings, followed by another's."""
        fields = {
            name: tuple(dict.fromkeys((*getattr(self, name), *getattr(other, name)))) for name in self.__struct_fields__
        }
        return CompileSettings(**fields)

    def options_for(self, backend: str) -> Iterable[str]:
        """The options for a backend's language."""
        for option in self.options:
            match = _LANGUAGE.match(option)
            if match is None:
                yield option
            elif _LANGUAGES[backend] in match["languages"].split(","):
                yield from match["option"].split(";")


PLAIN = CompileSettings()
"""Nothing but what every candidate is compiled with."""


def check_settings(settings: CompileSettings, library: str) -> None:
    """Check how a library is compiled. Raises BuildError for what is not allowed, and for a missing folder."""
    where = f"library {library!r}"
    for option in settings.options:
        if "$<" in option and not _LANGUAGE.match(option):
            raise BuildError(
                f"{where}: COMPILE_OPTIONS has {option!r}",
                why="the only generator expression that is understood is $<$<COMPILE_LANGUAGE:...>:...>",
                fix="write the option itself",
            )
    try:
        for backend in _LANGUAGES:
            for option in settings.options_for(backend):
                check_option(option, f"{where}: COMPILE_OPTIONS")
            settings.for_backend(backend)
    except SpecError as error:
        raise BuildError(error.what, why=error.why, fix=error.fix) from error
    for folder in settings.include_directories:
        if not Path(folder).is_dir():
            raise BuildError(
                f"{where}: INCLUDE_DIRECTORIES has {folder!r}, which is not a folder",
                fix="give a path below the CMakeLists.txt, or an absolute path",
            )


def linked_libraries(
    operators: Mapping[str, Operator],
    settings: CompileSettings,
    backends: Iterable[str],
    environment: Mapping[str, str],
) -> tuple[str, ...]:
    """Files of the libraries that kernels name, for the link of the library. CMake links those of `settings`.

    Raises:
        SpecError: one error for all that are not found, with the kernels that name them.
    """
    mistakes, files = Mistakes(), dict[str, None]()
    chains = {b: toolchain_for(b, environment) for b in backends if b in _LANGUAGES}
    with mistakes.gather():
        for chain in chains.values():
            _files(chain.libraries, CompileOptions(libraries=settings.libraries), "LINK_LIBRARIES")
    for operator in operators.values():
        for kernel in operator.kernels:
            if kernel.compile.libraries and kernel.backend in chains:
                with mistakes.gather():
                    where = f"operator {operator.name!r}: kernel {kernel.name!r}"
                    files.update(dict.fromkeys(_files(chains[kernel.backend].libraries, kernel.compile, where)))
    mistakes.tell()
    return tuple(files)


def _files(find: Callable[[CompileOptions], tuple[str, ...]], options: CompileOptions, where: str) -> tuple[str, ...]:
    try:
        return find(options)
    except ToolchainError as error:
        raise SpecError(f"{where}: {error.what}", why=error.why, fix=error.fix) from error


def of_target(file: Path, own: Iterable[str]) -> CompileSettings:
    """What `target_...` commands add to the CMake target beside the library's `own`, from `file`, if it is there."""
    try:
        rows = [row.partition("=") for row in os.fsdecode(file.read_bytes()).splitlines()]
    except FileNotFoundError:
        return CompileSettings()
    lists = {name: [item for item in value.split(";") if item] for name, _, value in rows}
    ours = {str(Path(folder).resolve()) for folder in own}
    folders = [f for f in lists.get("include_directories", ()) if not _is_own(f, ours)]
    return CompileSettings(
        include_directories=tuple(dict.fromkeys(folders)),
        definitions=tuple(lists.get("definitions", ())),
        libraries=tuple(lists.get("libraries", ())),
    )


def _is_own(folder: str, ours: set[str]) -> bool:
    path = Path(folder).resolve()
    return str(path) in ours or path.is_relative_to(PACKAGE)
