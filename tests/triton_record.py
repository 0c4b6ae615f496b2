"""The project of a kernel author with Triton kernels, and records of measurements that were never made.

The times are made up: code with the JIT's assumptions is twice as fast as code without; a kernel `split` is faster.
"""

import os
import shutil
from pathlib import Path

from cuda_project import save_record
from environments import ROOT

from aot_tune.compile import generic_targets, target_by_name, toolchain_for
from aot_tune.render import Rendered, Renderer, candidates_for, resolved
from aot_tune.spec import Operator, Target
from aot_tune.spec.load_operators import load_operators
from aot_tune.triton.ask_declarations import read_functions, with_declarations

EXAMPLE = ROOT / "examples" / "triton_package"


def copy_templates(folder: Path) -> Path:
    """The author's folder of operators and kernels, below another."""
    shutil.copytree(EXAMPLE / "templates", folder / "templates", ignore=shutil.ignore_patterns("__pycache__"))
    return folder / "templates"


def write_record(templates: Path, folder: Path, name: str) -> None:
    """Write a database of the author's operators in bf16 on a device of the target of that name."""
    target, roots = target_by_name(name), [templates]
    environ = {**os.environ, "AOT_TUNE_TEMPLATE_ROOTS": str(templates)}
    chain = toolchain_for("triton", environ)
    operators = {name: op for name, (_, op) in load_operators(roots).items()}
    known, note = read_functions(operators, [target], generic_targets([target]), roots, environ)
    assert note == ""
    for plain in operators.values():
        operator = with_declarations(plain, known, ["cpu", target.family])
        save_record(folder, operator, _rendered(operator, Renderer(roots), target), target, chain, _time)


def _rendered(operator: Operator, renderer: Renderer, target: Target) -> list[Rendered]:
    found: dict[str, Rendered] = {}
    for kernel in operator.kernels:
        one = resolved(kernel, target.name)
        for config in () if kernel.generic else one.configs(target.facts):
            for candidate in candidates_for(operator, one, config, target):
                if candidate.dtypes == {"T": "bf16"}:
                    found[candidate.id] = renderer.render(operator, candidate, target)
    return list(found.values())


def _time(rendered: Rendered) -> float:
    candidate = rendered.candidate
    special = any(name.endswith("%16") for name in candidate.pins)
    slower = 1e5 * int(candidate.config.get("ROWS", 2) != 2)
    return (1e6 if special else 2e6) + slower - 1e5 * (candidate.kernel == "split")
