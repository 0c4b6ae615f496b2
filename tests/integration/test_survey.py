"""Surveys of a build: shapes that nobody tuned get the variant that is right for them."""

import json
from collections.abc import Callable
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
def project(forks: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = Project.make(tmp_path_factory.mktemp("surveyed") / "project", AOT_TUNE_SURVEY="100")
    made.runs = forks
    text = made.operator.read_text()
    begin, end = text.index('        Kernel(\n            "loop"'), text.index("            requires=(stride")
    text = text[:begin] + KERNELS.lstrip("\n") + text[end:]
    text = text.replace("problem(N=20000), problem(N=60000)", "problem(N=256), problem(N=400000)")
    text = text.replace("    workload=", '    regimes={"short": (N <= 4096,), "none": (N < 1,)},\n    workload=')
    made.operator.write_text(text)
    (made.templates / "twice" / "loop.cpp.j2").write_text(LOOP)
    made.configure()
    assert "regime 'none' has no shape within its ranges and values that a tuned kernel takes" in made.build()
    return made


def decided(project: Project, build: str = "build") -> str:
    """The generated tables and models, without what tells of builds."""
    text = (project.folder / build / "dispatch.cpp").read_text()
    return text[text.index("// ---- twice ----") :]


def test_the_report_tells_what_dispatch_gives_up_on_other_shapes(project: Project) -> None:
    (one,) = json.loads((project.folder / "build" / "report.json").read_bytes())["operators"]
    survey = one["survey"]
    assert survey["shapes"] + survey["learned_from"] == 100
    assert 10 <= survey["shapes"] <= 35
    assert 0 <= survey["mean"] <= survey["worst"]  # a single bad shape can lift the mean above p95
    assert 0 <= survey["p95"] <= survey["worst"]
    assert survey["mean"] < 0.15, "one variant is up to four times slower than the other"
    aside = [p["regret"] for p in survey["points"] if p["held_out"]]
    assert len(survey["points"]) == 100
    assert len(aside) == survey["shapes"]
    assert max(aside) == pytest.approx(survey["worst"], abs=1e-4)
    points = {regime: [p for p in survey["points"] if p["regime"] == regime] for regime in ("short", "other")}
    assert {len(p) for p in points.values()} == {50}
    assert all((p["dims"]["N"] <= 4096) == (regime == "short") for regime in points for p in points[regime])
    (curve,) = one["curves"]
    assert len(curve["regret"]) == len(curve["variants"]) == len(curve["served"]) > 1
    (shown,) = one["maps"]
    picks = [shown["variants"][p] for row in shown["picks"] for p in row]
    assert picks[0] != picks[-1], "what is best for small calls is not best for large ones"
    assert one["seconds"]["bench"] > 0
    said = project.ask("report", "--build", project.folder / "build" / "report.json")
    assert f"on '{survey['where']}'" in said


def test_a_replay_of_the_record_decides_the_same(project: Project) -> None:
    tuning = project.record()
    (line,) = {
        line for p in tuning.rglob("*.jsonl") for line in p.read_text().splitlines() if line.startswith('{"survey"')
    }
    assert len(json.loads(line)["survey"]["dims"]["N"]) == 102
    project.configure("--database", tuning, build="again", AOT_TUNE_MODE="replay")
    project.build(build="again")
    assert decided(project, "again") == decided(project)


UNTOLD = """
{{ prelude() }}
{{ no_workspace() }}
{{ kernel_signature("launch") }} {
  const bool lucky = static_cast<uint64_t>({{ dim("N") }}) * 0x9e3779b97f4a7c15u >> 63 == {{ LIKES }};
  for (int t = 0; t < (lucky ? 1 : 8); ++t) {
    for (int64_t i = 0; i < {{ dim("N") }}; ++i) {
      {{ store("y", ["i"], "2 * " ~ load("x", ["i"])) }}
    }
    asm volatile("" ::: "memory");
  }
  return 0;
}
"""
"""Which of two variants is the better one, nothing tells: neither neighbours nor terms of a call."""


def test_a_decision_that_loses_too_much_gets_more_shapes_and_is_not_shipped_by_a_strict_build(
    forks: Callable[..., str], tmp_path: Path
) -> None:
    project = Project.make(tmp_path / "project")
    del project.env["AOT_TUNE_SURVEY"]
    project.runs = forks
    project.change(
        'Parameter("TIMES", (1, 4, 16, 64, 256)), Parameter("UNROLL", (1, 4))', 'Parameter("LIKES", (0, 1)),'
    )
    project.change('            constraints=(parameter("UNROLL") == 1,),\n', "")
    (project.templates / "twice" / "loop.cpp.j2").write_text(UNTOLD)
    project.configure(AOT_TUNE_STRICT="1")
    said = project.build(status=1, AOT_TUNE_STRICT="1")
    assert "survey: twice as many shapes of 1 regime, where dispatch is not good enough yet" in said
    assert "operator 'twice' on " in said
    assert "regime 'other': " in said
    assert "held-out shapes" in said
    assert "fix: tune on the device with more shapes (AOT_TUNE_SURVEY), or add kernels that are good there" in said
    project.configure(build="lax")
    said = project.build(build="lax")
    assert "NOTE calls that nobody measured may be slow in 1 regime: twice (1); " in said
    report = json.loads((project.folder / "lax" / "report.json").read_bytes())
    assert any("10% and 50% are the limits" in note for note in report["notes"])
    tuning = project.record()
    said = project.ask("records", "check", "--render", "--quiet", "--templates", project.templates, tuning, status=1)
    assert "10% and 50% are the limits" in said
