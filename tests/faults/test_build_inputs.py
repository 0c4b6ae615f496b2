"""Bad input gets an error that names value, place and remedy, before any compiler has run on a candidate.

tests/unit/spec and tests/unit/render have what else is refused of operators and templates, in the same words.
"""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from project import Project

pytestmark = pytest.mark.slow

Change = Callable[[Project], None]


def operator(old: str, new: str) -> Change:
    return lambda p: p.change(old, new)


def template(old: str, new: str, path: str = "loop.cpp.j2") -> Change:
    return lambda p: p.change(old, new, path)


def with_second_root(project: Project) -> None:
    folder = project.folder / "more" / "twice"
    folder.mkdir(parents=True)
    (folder / "operator.py").write_text(project.operator.read_text())


def link_outside(project: Project) -> None:
    outside = project.folder / "outside.cpp.j2"
    inside = project.templates / "twice" / "loop.cpp.j2"
    inside.rename(outside)
    inside.symlink_to(outside)


def unknown_fact(project: Project) -> None:
    project.change("import Kernel", "import target, Kernel")
    project.change('parameter("UNROLL") == 1', 'target("vectorbytes") == 1')


LOOP_PATH = '"twice/loop.cpp.j2"'
CASES: dict[str, tuple[Change, list[str]]] = {
    "unknown dtype": (
        operator('Tensor("x", (N,))', 'Tensor("x", (N,), "f23")'),
        ["operator.py", "tensor 'x'", "'f23'", "did you mean 'f32'"],
    ),
    "a constraint that leaves no config": (
        operator('parameter("UNROLL") == 1', 'parameter("UNROLL") == 0'),
        ["operator 'twice': kernel 'loop': its constraints leave no config", "fix: loosen a constraint"],
    ),
    "template that is not there": (
        operator(LOOP_PATH, '"twice/lop.cpp.j2"'),
        ["'twice/lop.cpp.j2'", "did you mean", "twice/loop.cpp.j2"],
    ),
    "link out of the root": (link_outside, ["'twice/loop.cpp.j2'", "leads outside", "outside.cpp.j2"]),
    "undefined name": (template("{{ TIMES }}", "{{ TIMS }}"), ["twice/loop.cpp.j2:5", "'TIMS' is undefined", "TIMES"]),
    "unknown dim": (template('dim("N")', 'dim("M")'), ["twice/loop.cpp.j2:7", "dim('M')"]),
    "bad unroll": (template("unroll(UNROLL)", "unroll('4; x')"), ["twice/loop.cpp.j2:6", "unroll('4; x')"]),
    "fault in the generic template": (
        template("{{ no_workspace() }}", "{{ no_worcspace() }}", "generic.cpp.j2"),
        ["twice/generic.cpp.j2:3", "no_worcspace", "did you mean"],
    ),
    "value that is C": (
        operator("(1, 4, 16, 64, 256)", "('1);system(\"x\")', 8)"),
        ["operator.py", "parameter 'TIMES'", "system", "identifier"],
    ),
    "name that is C": (operator('name="twice"', 'name="twice(); int x"'), ["operator.py", "twice(); int x", "letters"]),
    "unknown backend": (
        operator('"twice/loop.cpp.j2",', '"twice/loop.cpp.j2", backend="cxy",'),
        ["operator 'twice': kernel 'loop': there is no backend 'cxy'", "did you mean 'cxx'"],
    ),
    "constraint on an unknown fact": (
        unknown_fact,
        ["operator 'twice': kernel 'loop': 'target.vectorbytes' is used but not bound", "'target.vector_bytes'"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_operators_and_templates(project: Project, case: str) -> None:
    change, words = CASES[case]
    change(project)
    refused(project, project.configure(status=1), words)


def refused(project: Project, said: str, words: list[str]) -> None:
    assert said.startswith("aot-tune: ")
    assert "Traceback" not in said
    assert len(said) < 2000
    for word in words:
        assert word in said, said
    assert project.compiler.candidates() == 0
    assert not (project.folder / "build").exists()


def test_duplicate_operator(project: Project) -> None:
    with_second_root(project)
    roots = ["--templates", project.templates, "--templates", project.folder / "more"]
    refused(project, project.configure(*roots, status=1), ["operator 'twice' is declared twice", "rename"])
    said = project.configure("--option", "AOT_TUNE_OPERATORS=twice;twice", status=1)
    refused(project, said, ["operator 'twice' is declared twice"])


OPTIONS: dict[str, tuple[str, list[str]]] = {
    "unknown mode": ("AOT_TUNE_MODE=replya", ["AOT_TUNE_MODE='replya'", "did you mean 'replay'"]),
    "unknown target": ("AOT_TUNE_TARGETS=cpu-x86-64-v9", ["'cpu-x86-64-v9'", "did you mean", "'cpu-x86-64-v4'"]),
    "unknown family": ("AOT_TUNE_TARGETS=gpu", ["'gpu'", "fix: did you mean 'cuda'"]),
    "relative cache": ("AOT_TUNE_CACHE_DIR=some/where", ["AOT_TUNE_CACHE_DIR='some/where'", "absolute"]),
    "unknown option": ("AOT_TUNE_MOD=tune", ["AOT_TUNE_MOD", "did you mean 'AOT_TUNE_MODE'"]),
    "filter that matches nothing": ("AOT_TUNE_FILTER=gem/*", ["AOT_TUNE_FILTER", "gem/*"]),
    "filter without kernels": ("AOT_TUNE_FILTER=twice", ["AOT_TUNE_FILTER='twice'", "did you mean 'twice/*'"]),
    "unknown backend": (
        "AOT_TUNE_EXCLUDE_BACKENDS=nvcc;cublast",
        ["AOT_TUNE_EXCLUDE_BACKENDS has 'cublast'", "did you mean 'cublaslt'"],
    ),
    "backend that answers": ("AOT_TUNE_EXCLUDE_BACKENDS=cxx", ["the generic kernel twice/generic", "no variant"]),
}


def test_an_unknown_option_in_the_environment_is_told_and_does_nothing(project: Project) -> None:
    """Other programs may own the name."""
    said = project.configure(AOT_TUNE_MOD="tune")
    assert "AOT_TUNE_MOD in the environment is not an option and has no effect; did you mean AOT_TUNE_MODE?" in said
    assert (project.folder / "build").is_dir()


def test_options(project: Project) -> None:
    for case, (option, words) in OPTIONS.items():
        refused(project, project.configure("--option", option, status=1), words)
        name, _, value = option.partition("=")
        if case != "unknown option":
            refused(project, project.configure(status=1, **{name: value}), words)
    said = project.configure(status=1, SOURCE_DATE_EPOCH="yesterday")
    refused(project, said, ["SOURCE_DATE_EPOCH='yesterday' is not a count of seconds"])


def test_names_that_cannot_be_identifiers(project: Project) -> None:
    for flag, value in (("--name", "a b"), ("--prefix", "1st"), ("--prefix", "int"), ("--module", "a-b")):
        refused(project, project.configure(flag, value, status=1), [repr(value)])


def test_file_names_that_are_not_plain(project: Project) -> None:
    for flag, what in (("--output", "OUTPUT_NAME"), ("--header", "HEADER")):
        for value in ("../up", "/etc/ops.h", "a b", "a;b", "a\nb", "./x", "a//b", "x" * 200, "ü"):
            refused(project, project.configure(flag, value, status=1), [what, repr(value[:100]), "fix:"])


def test_no_compiler(project: Project, tmp_path: Path) -> None:
    project.env.pop("CXX")
    said = project.configure(status=1, PATH=str(tmp_path))
    refused(project, said, ["no C++ compiler", "g++", "CXX"])
    refused(project, project.configure(status=1, CXX="g+++"), ["CXX='g+++'"])


@pytest.mark.parametrize("place", ["cache", "above"])
def test_no_write_access_to_the_cache(project: Project, place: str) -> None:
    """It is found out before the first compile, whether the folder is there already or not."""
    folder = project.folder / "locked"
    folder.mkdir(mode=0o700)
    folder.chmod(0o555)
    named = folder if place == "cache" else folder / "below"
    said = project.configure(wrap=True, status=None, AOT_TUNE_CACHE_DIR=str(named))
    if "locked" not in said:
        said = project.build(wrap=True, status=1, AOT_TUNE_CACHE_DIR=str(named))
    assert str(named) in said
    assert "AOT_TUNE_CACHE_DIR" in said
    assert "Traceback" not in said
    assert project.compiler.candidates() == 0


def test_a_database_that_is_empty_or_damaged(project: Project) -> None:
    database = project.folder / "tuning"
    replay = ["--option", "AOT_TUNE_MODE=replay"]
    words = [str(database), "not a folder", "aot-tune record"]
    refused(project, project.configure("--database", database, status=1), words)
    refused(project, project.configure("--database", database, *replay, status=1), words)
    refused(project, project.configure(*replay, status=1), ["the database is empty", "aot-tune record"])
    (database / "device").mkdir(parents=True)
    said = project.configure("--database", database, *replay, status=1)
    refused(project, said, ["the database is empty", "aot-tune record"])
    (database / "device" / "twice.jsonl").write_text("{}\n")
    said = project.configure("--database", database, "--option", "AOT_TUNE_MODE=replay", status=1)
    assert "twice.jsonl:1" in said
    assert project.compiler.candidates() == 0


# The same through CMake: the whole message reaches the person who configures.


def test_options_and_arguments_of_cmake(project: Project) -> None:
    said = " ".join(project.cmake("-DAOT_TUNE_BUDGET=", "-DAOT_TUNE_MODDE=generic", status=1).split())
    assert "unknown option AOT_TUNE_MODDE" in said
    assert "did you mean 'AOT_TUNE_MODE'" in said
    lists = project.folder / "CMakeLists.txt"
    text = lists.read_text()
    lists.write_text(text.replace(" templates ", " templates DATABASE x y "))
    assert "unknown argument 'y'" in " ".join(project.cmake("-UAOT_TUNE_MODDE", status=1).split())
    lists.write_text(text.replace(" templates ", " templates TARGETS cpu-x86-64-v2 cpu-x86-64-v3 "))
    assert "targets cpu-x86-64-v2, cpu-x86-64-v3" in project.cmake()
    assert project.compiler.candidates() == 0


def test_configure_tells_all_mistakes_of_all_declarations(project: Project) -> None:
    """Also those of one operator that do not follow from each other, and those of templates."""
    project.add("unfinished", ("flops=N,", "flops=N,,", "operator.py"))
    project.add("of_nothing", ("{{ prelude() }}", "{{ prelude() }} {{ missing }}", "loop.cpp.j2"))
    project.change("flops=N,", 'flops=N, tolerance={"z": 2.0}, exact="yes",')
    project.change('requires=(stride("x", 0) == 1,', 'requires=(stride("q", 0) == 1,')
    said = project.configure(status=1)
    assert "aot-tune: 5 mistakes:" in said
    told = re.findall(r"^ *\d\. (.*)$", said, re.MULTILINE)
    assert len(told) == 5
    for wanted in (
        "operator 'twice': tolerance names 'z', which is not an output",
        "operator 'twice': exact is not an IntegerSums",
        "operator 'twice': kernel 'loop'",
        "unfinished/operator.py fails: SyntaxError",
        "of_nothing/loop.cpp.j2:",
    ):
        assert any(wanted in line for line in told), (wanted, said)
    assert said.count("fix: ") >= 4
