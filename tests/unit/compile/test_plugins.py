"""Backends of other packages: a tiny one works, and each that does not is named with its package and version."""

import ctypes
import importlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from host_kernels import TARGETS

from aot_tune.compile import ObjectCache, Toolchain, template_folders, toolchain, toolchain_for
from aot_tune.plan.preflight import check_backends, check_kernels
from aot_tune.render import Candidate, Rendered, Renderer
from aot_tune.spec import Kernel, Operator, Tensor, dims, problem
from aot_tune.support.errors import BuildError, OptionError, ToolchainError

NUMBERS = itertools.count()  # no module has another's name, since a process imports each once
TINY = """
from pathlib import Path
from aot_tune.compile import Toolchain, toolchain_for

class Tiny(Toolchain):
    name, templates = "tiny", Path(__file__).parent / "templates"
    def __init__(self, environ):
        super().__init__(environ)
        self.cxx = toolchain_for("cxx", environ)
    def targets(self):
        return self.cxx.targets()
    def identity(self):
        return {"version": "7", **{f"host {n}": t for n, t in self.cxx.identity().items()}}
    def recipe(self, target):
        return self.cxx.recipe(target)
    def compile(self, source, target, out, timeout, options):
        return self.cxx.compile(source.replace("TWICE", "2 *"), target, out, timeout, options)
"""
(N,) = dims("N")


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Installs a package, as pip would: a module, its version and its entry points."""

    def installed(text: str = TINY, package: str = "tiny-backend", version: str = "1.2", name: str = "tiny") -> None:
        place = tmp_path / package
        module = f"{package.replace('-', '_')}_{next(NUMBERS)}"
        info = place / f"{package.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(f"[aot_tune.backends]\n{name} = {module}:Tiny\n")
        (place / f"{module}.py").write_text(text)
        (place / "templates" / "tiny").mkdir(parents=True)
        (place / "templates" / "tiny" / "times.h.j2").write_text("#define TIMES {{ dim('N') }}\n")
        monkeypatch.syspath_prepend(str(place))
        importlib.invalidate_caches()
        toolchain.factory_of.cache_clear()

    yield installed
    toolchain.factory_of.cache_clear()


SOURCE = """
{{ prelude() }}
{% include "tiny/times.h.j2" %}
{{ no_workspace() }}
{{ kernel_signature("launch") }} {
  for (int64_t i = 0; i < TIMES; ++i) { {{ store("y", ["i"], "TWICE " ~ load("x", ["i"])) }} }
  return 0;
}
"""
OPERATOR = Operator(
    name="twice",
    dims=("N",),
    tensors=(Tensor("x", (N,)), Tensor("y", (N,), output=True)),
    reference=lambda xp, call: {"y": 2 * call.x},
    flops=N,
    workload=(problem(N=9),),
    kernels=(Kernel("generic", "twice/g.cpp.j2", generic=True), Kernel("tiny", "twice/tiny.cpp.j2", backend="tiny")),
)


def rendered(folder: Path) -> Rendered:
    (folder / "twice").mkdir()
    (folder / "twice" / "tiny.cpp.j2").write_text(SOURCE)
    candidate = Candidate(operator="twice", kernel="tiny", backend="tiny", target=TARGETS[0].name, config={}, dtypes={})
    return Renderer([folder, *template_folders(["cxx", "tiny"])]).render(OPERATOR, candidate, TARGETS[0])


def test_a_plug_in_renders_compiles_links_and_is_part_of_keys(install, tmp_path: Path) -> None:
    install()
    check_kernels({"twice": OPERATOR})
    check_backends(["tiny"], [], ())
    source, cache = rendered(tmp_path), ObjectCache(None, toolchain_for("tiny"))
    made = cache.get(source, TARGETS[0])
    assert made.status == "ok", made.log
    assert b"tiny-backend 1.2" in cache.key(source, TARGETS[0])[1]
    toolchain_for("tiny").link_shared([Path(made.path)], tmp_path / "one.so")
    assert hasattr(ctypes.CDLL(str(tmp_path / "one.so")), f"{source.symbol}_launch")


LIES: dict[str, tuple[str, str, str]] = {
    "raises when it is imported": ("class Tiny", "1 / 0\nclass Tiny", "cannot be loaded: ZeroDivisionError"),
    "ends the process": ("class Tiny", "raise SystemExit('bye')\nclass Tiny", "cannot be loaded: SystemExit: bye"),
    "is no toolchain": ("class Tiny(Toolchain)", "class Tiny", "cannot be loaded"),
    "has another name": ('"tiny", Path', '"tinny", Path', "Tiny of the name 'tinny'"),
    "has no templates": ('/ "templates"', '/ "tenplates"', "its folder of templates '.*tenplates' does not exist"),
    "does not say what it is": ('{"version": "7", **', "{**", "identity.. is .*, not texts with a version"),
    "has a target of its own": ("return self.cxx.targets()", 'return ("gpu",)', "targets.. has 'gpu', which is no"),
    "raises": ("return self.cxx.targets()", "raise KeyError('x')", "targets.. raises KeyError: 'x'"),
    "has a recipe that is no data": ("return self.cxx.recipe(target)", "return {'a': object()}", "no plain data"),
    "links nothing": ("def recipe", "link_shared = print\n    def recipe", "link_shared.. made no file"),
    "lacks a method": ("def recipe", "def recipes", "cannot be loaded: TypeError"),
}


def use(chain: Toolchain) -> object:
    made = chain.targets(), chain.identity(), chain.recipe(TARGETS[0]), chain.templates
    return made, chain.link_shared([], Path("no.so"))


@pytest.mark.parametrize("lie", LIES)
def test_a_plug_in_that_does_not_work_is_named(install, lie: str) -> None:
    old, new, words = LIES[lie]
    assert old in TINY
    install(TINY.replace(old, new))
    with pytest.raises(ToolchainError, match=f"(?s)backend 'tiny' of the package tiny-backend 1.2: .*{words}.*fix: "):
        use(toolchain_for("tiny"))


COMPILE = 'return self.cxx.compile(source.replace("TWICE", "2 *"), target, out, timeout, options)'
ABOVE = "void f(float* x) { for (int i = 0; i < 64; ++i) x[i] *= 2; }"
OBJECTS = {
    "raises": ("1 / 0", "compile() raises ZeroDivisionError"),
    "gives something else": ("return None", "compile() gives None"),
    "makes no file": ("from aot_tune.compile import Object; return Object(status='ok')", "there is no file"),
    "makes no object": (
        "out.write_text('x'); from aot_tune.compile import Object; return Object(status='ok')",
        "cannot be",
    ),
    "has code above its target": (
        COMPILE.replace("target,", "self.targets()[-1],").replace("source.", f"'{ABOVE}'."),
        "above",
    ),
    "lacks the functions": (COMPILE.replace("source.", "'int f;'."), "lacks the function 'aot_tune_twice"),
}


@pytest.mark.parametrize("lie", OBJECTS)
def test_a_bad_object_of_a_plug_in_costs_only_itself(install, tmp_path: Path, lie: str) -> None:
    code, words = OBJECTS[lie]
    assert COMPILE in TINY
    install(TINY.replace(COMPILE, code))
    made = ObjectCache(None, toolchain_for("tiny")).get(rendered(tmp_path), TARGETS[0])
    assert (made.status, made.lasting) == ("compile-failed", False)
    assert words in made.log
    assert "tiny-backend 1.2" in made.log


def test_a_plug_in_whose_name_is_taken(install) -> None:
    install()
    install(package="other", version="3")
    with pytest.raises(BuildError, match=r"kernel 'tiny': .*'tiny' is offered by other 3 and by tiny-backend 1.2"):
        check_kernels({"twice": OPERATOR})
    install(package="third", name="cxx")
    with pytest.raises(ToolchainError, match=r"'cxx' is offered by aot_tune itself and by third 1.2"):
        toolchain_for("cxx")


def test_a_plug_in_that_is_missing() -> None:
    with pytest.raises(BuildError, match=r"(?s)'tiny'.*no installed package.*fix: .*AOT_TUNE_EXCLUDE_BACKENDS=tiny"):
        check_kernels({"twice": OPERATOR})
    with pytest.raises(OptionError, match="AOT_TUNE_EXCLUDE_BACKENDS has 'tinny', which is not a backend"):
        check_backends(["tinny"], [], ())
