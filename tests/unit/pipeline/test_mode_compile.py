"""AOT_TUNE_MODE=compile in the build of a package, and what AOT_TUNE_MODE=generic finds in templates."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from compiled_project import GENERIC, SOME_FAIL, project

from aot_tune.pipeline.build_library import build
from aot_tune.plan.library_plan import Request, make_plan, write_plan
from aot_tune.report import read_report
from aot_tune.support.errors import AotTuneError, BuildError, RenderError

KERNEL = 'Kernel("some", "twice/some.cpp.j2", parameters=(K,))'


def planned(templates: Path, mode: str, **options: str) -> Path:
    """The folder of a planned library."""
    given = {"AOT_TUNE_MODE": mode, "AOT_TUNE_TARGETS": "cpu-x86-64-v3", **options}
    given["AOT_TUNE_CACHE_DIR"] = str(templates.parent / "cache")
    request = Request(name="ops", prefix="mine", header="mine.h", templates=(str(templates), "bundled"),
                      operators=("twice",), options=given)  # fmt: skip
    folder = templates.parent / f"planned-{mode}"
    write_plan(folder, *make_plan(request, os.environ))
    return folder


def test_everything_is_compiled_then_the_library_is_that_of_generic(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    templates = project(tmp_path, KERNEL, some=SOME_FAIL)
    folder = planned(templates, "compile")
    build(folder)
    assert "twice/some for cpu-x86-64-v3: 3 candidates, 1 fit, 2 fail" in capsys.readouterr().out
    manifest = msgspec.json.decode((folder / "manifest.json").read_bytes())
    assert [v["kernel"] for v in manifest["operators"][0]["variants"]] == ["generic"]
    assert read_report(folder / "report.json").mode == "compile"
    with pytest.raises(BuildError, match=r"kernel 'some' has candidates that fail for cpu-x86-64-v3") as caught:
        build(planned(templates, "compile", AOT_TUNE_STRICT="1"))
    assert "compile-failed: twice/some.cpp.j2:" in caught.value.why


def test_a_template_that_cannot_be_rendered_fails_a_generic_build(tmp_path: Path) -> None:
    """It would else be found by who builds on a device."""
    templates = project(tmp_path, KERNEL, some=GENERIC.replace("return 0;", "{{ nothing_of_that_name }}"))
    for mode in ("generic", "auto"):
        with pytest.raises(RenderError, match=r"twice/some\.cpp\.j2:5: .*\(kernel twice/some K=1\)"):
            planned(templates, mode)


def test_texts_of_kept_variants_are_kept_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    templates = project(tmp_path, KERNEL, some=GENERIC)
    folder = planned(templates, "generic", AOT_TUNE_KEEP=str(tmp_path / "kept"))
    build(folder)
    (variant,) = msgspec.json.decode((folder / "manifest.json").read_bytes())["operators"][0]["variants"]
    held = {p.name: p.read_text() for p in (tmp_path / "kept" / "ops" / "twice").iterdir()}
    assert set(held) == {f"{variant['name']}.cpp", f"{variant['name']}.s"}
    assert f"{variant['symbol']}_launch(" in held[f"{variant['name']}.cpp"]
    assert f"{variant['symbol']}_launch:" in held[f"{variant['name']}.s"]
    assert "kept 2 files of 1 variants below" in capsys.readouterr().out
    (tmp_path / "file").write_text("")
    build(planned(templates, "generic", AOT_TUNE_KEEP=str(tmp_path / "file" / "kept")))  # which costs no library
    assert "AOT_TUNE_KEEP: NOTHING KEPT below" in capsys.readouterr().out
    with pytest.raises(AotTuneError, match="AOT_TUNE_KEEP='kept' is not an absolute path"):
        planned(templates, "generic", AOT_TUNE_KEEP="kept")
