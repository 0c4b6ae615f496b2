"""Fragments as Triton functions. Triton takes code only from files, so each is written to a module and imported."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

from aot_tune.render.triton.fragment_source import TritonFragment, function_source
from aot_tune.support.errors import ToolchainError

__all__ = ["fragment_function"]

_PREFIX = "aot_tune_fragment_"


def fragment_function(fragment: TritonFragment, folder: Path) -> Any:
    """The @triton.jit function of a fragment. Its module is kept below `folder` and imported once in a process.

    Raises:
        ToolchainError: when the fragment was written by another version of this package.
    """
    text = function_source(fragment)
    digest = hashlib.sha256(text.encode()).hexdigest()
    if digest != fragment.digest:
        raise ToolchainError(
            f"the function of the fragment {fragment.name!r} has changed since it was rendered",
            why="the build uses two versions of aot_tune",
            fix="configure and build again",
        )
    name = f"{_PREFIX}{digest[:16]}"
    if name not in sys.modules:
        path = folder / f"{name}.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[name] = module
    return getattr(sys.modules[name], fragment.name)
