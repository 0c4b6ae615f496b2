"""Composed kernels compiled for the host, to be called beside a stand-in for the vendor's library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cublaslt_stand_in import stand_ins
from forked import answer
from rows_on_host import shared_object

from aot_tune.render import Rendered

Calls = list[dict[str, Any]]


class OnHost:
    """A composed kernel compiled for the host, to be called beside a stand-in for the vendor's library."""

    def __init__(self, folder: Path, rendered: Rendered, templates: Path) -> None:
        self._rendered, self._program, self._templates = rendered, shared_object(folder, rendered.source), templates
        self.dtype = rendered.candidate.dtypes["T"]

    def call(self, calls: Calls, libraries: Path | None) -> Any:
        candidate = self._rendered.candidate
        wide = candidate.config.get("SCRATCH", True)
        given = {
            "candidate": str(self._program),
            "symbol": self._rendered.symbol,
            "templates": str(self._templates),
            "operator": candidate.operator,
            "dtype": candidate.dtypes["T"],
            "rounded": not wide,
            "libraries": stand_ins(libraries),
            "calls": calls,
        }
        operator = self._templates / candidate.operator
        return answer(f"from composed_calls import *\nloaded({str(operator)!r})", "answers(given)", given)
