"""What a record recognises a candidate's source by: all that decides what is computed, and how."""

from __future__ import annotations

from aot_tune.render.candidate import Candidate, requirements
from aot_tune.render.tokens import token_text
from aot_tune.spec import CompileOptions, Operator, Target
from aot_tune.support.digests import canonical_digest

__all__ = ["source_digest"]


def source_digest(
    operator: Operator,
    candidate: Candidate,
    target: Target,
    source: str,
    recipe: dict[str, object] | None,
    options: CompileOptions = CompileOptions(),  # noqa: B008 - it is frozen
) -> str:
    """The digest of a rendered source, with the target, the guards and the operator's checks.

    A vendor's call is its algorithm, whatever calls it. All others are their tokens; `recipe` is what a source has of a
    Triton function, `options` are the author's, where there are any.
    """
    guards = [e.key() for e in requirements(operator, candidate)]
    if operator.kernel(candidate.kernel).algorithms is not None:
        code: object = [candidate.backend, candidate.config]
    else:
        code = [recipe, token_text(source)]
    with_options = [options.plain()] if options else []
    return canonical_digest([target.name, guards, [p.id for p in operator.checks], code, *with_options])
