"""`aot-tune try`: one candidate again, by itself."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from aot_tune.cli.source_options import add_source_options, source_options

__all__ = ["add_commands"]


def add_commands(commands: Any) -> None:
    """Add the command to the parser."""
    one = commands.add_parser(
        "try",
        help="run one candidate again, by itself",
        description="Compile, verify and time one candidate. A build prints this command for each candidate that "
        "failed.",
    )
    one.add_argument("operator", metavar="OPERATOR")
    one.add_argument("candidate", metavar="CANDIDATE", help="its name in reports, such as packed_3fa2b1c9")
    one.add_argument(
        "--problem", default="", help="such as 'M=16 N=4096 K=4096 +bias'; default: all problems that it serves"
    )
    one.add_argument("--target", default="", help="what it is compiled for; default: the best of this machine")
    one.add_argument(
        "--templates",
        action="append",
        default=[],
        metavar="DIR",
        help="template root, as TEMPLATES of aot_tune_add_library; may be repeated; default: the bundled operators",
    )
    one.add_argument("--source", type=Path, metavar="FILE", help="write the rendered source there")
    add_source_options(one)
    one.set_defaults(run=_try)


def _try(given: argparse.Namespace) -> int:
    from aot_tune.pipeline.try_one import try_candidate
    from aot_tune.support.interrupts import end_with_the_build

    with end_with_the_build():
        well = try_candidate(
            given.operator,
            given.candidate,
            templates=given.templates,
            target=given.target,
            problem=given.problem,
            source=given.source,
            compiled_with=source_options(given),
        )
    return 0 if well else 1
