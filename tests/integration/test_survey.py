"""Surveys of a build: shapes that nobody tuned get the variant that is right for them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from project import Project

KERNELS = """
        Kernel(
            "loop",
            "twice/loop.cpp.j2",
            parameters=(Parameter("WAIT", (0, 1)), Parameter("TIMES", (1, 4))),
            constraints=((parameter("WAIT") == 1) == (parameter("TIMES") == 1),),
"""
LOOP = """
{{ prelude() }}
{{ no_workspace() }}
{{ kernel_signature("launch") }} {
  if ({{ WAIT }}) for (int i = 0; i < 12000; ++i) asm volatile("nop");
  for (int t = 0; t < {{ TIMES }}; ++t) {
    for (int64_t i = 0; i < {{ dim("N") }}; ++i) {
      {{ store("y", ["i"], "2 * " ~ load("x", ["i"])) }}
    }
    asm volatile("" ::: "memory");
  }
  return 0;
}
"""
"""Variants that are best for small and for large calls: one does the work four times, the other waits first."""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = Project.make(tmp_path_factory.mktemp("surveyed") / "project", AOT_TUNE_SURVEY="100")
    text = made.operator.read_text()
    begin, end = text.index('        Kernel(\n            "loop"'), text.index("            requires=(stride")
    text = text[:begin] + KERNELS.lstrip("\n") + text[end:]
    text = text.replace("problem(N=20000), problem(N=60000)", "problem(N=256), problem(N=400000)")
    made.operator.write_text(text)
    (made.templates / "twice" / "loop.cpp.j2").write_text(LOOP)
    made.cmake()
    return made


def test_a_build_surveys_and_decides_by_it(project: Project) -> None:
    said = project.make_all()
    assert re.search(r"survey: 100 shapes, in \d+ s", said), said
