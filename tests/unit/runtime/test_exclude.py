"""AOT_TUNE_EXCLUDE: variants that a library never chooses; and what `aot-tune explain` passes on to a library."""

import sys
from types import ModuleType

import forked
import linked
import pytest

from aot_tune.cli.main import main

NAMED = "AOT_TUNE_EXCLUDE names it"
ASK = """
cuda = linked.load_module(Path({module!r}))
try:
    for n in {sizes}:
        print(linked_cuda.call(cuda, n, 1))
    os.environ["AOT_TUNE_EXCLUDE"] = "*"  # it was read
    told = cuda.explain("scale", N=8, T={dtype!r}, device=1)
    print(told["variant"], told["why"], *told["rejected"], sep="\\n")
except cuda.Error as error:
    print(type(error).__name__, error)
"""


def ask(built: linked.Built, exclude: str, sizes: tuple[int, ...] = (8,), dtype: str = "f32", **more: str) -> list[str]:
    code = ASK.format(module=str(built.module), sizes=sizes, dtype=dtype)
    return forked.python(code, AOT_TUNE_EXCLUDE=exclude, **more).splitlines()


def test_what_is_named_is_never_chosen(standin: linked.Built) -> None:
    for names, mark, rejected in (
        ("wide_90a", 400, ["wide_90a"]),
        ("wide", 400, ["wide_90a"]),
        ("scale:w*", 400, ["wide_90a"]),
        ("*_9*a", 100, ["vendor_90a", "wide_90a", "fast_90a"]),
        ("nobody, fast_90a , wide*,", 100, ["wide_90a", "fast_90a"]),
        ("*", 100, ["vendor_90a", "wide_90a", "fast_90a"]),  # the generic variant serves in any case
        ("plain*,plain_cuda", 300, []),
        ("gemm:wide,rms_norm:*,wid,ide_90a,*_80", 300, []),
        ("", 300, []),
        (" , ", 300, []),
    ):
        said = ask(standin, names)
        assert float(said[0]) == mark
        wanted = [f"{name}: {NAMED}" for name in rejected]
        if "vendor_90a" not in rejected:
            wanted.insert(0, "vendor_90a: the vendor's library 12.3 is not here")
        if mark == 100:
            assert said[1:3] == ["plain_cuda", "generic: no variant ranked for such calls accepts this one"]
        assert said[3:] == wanted


@pytest.mark.parametrize(
    ("variable", "wanted", "bad"),
    [
        ("AOT_TUNE_EXCLUDE", ", with * for any characters", ["*:wide"]),
        ("AOT_TUNE_FORCE", ", alone or as operator:name", ["wi*"]),
    ],
)
def test_bad_syntax(standin: linked.Built, variable: str, wanted: str, bad: list[str]) -> None:
    """FAULTS.md, row 71: a call fails, and is not served by what was not asked for."""
    for names in ("wide;fast", "scale:", ":wide", "a:b:c", "wide fast", "wide,fa?t", "ü", *bad):
        code = ASK.format(module=str(standin.module), sizes=(8,), dtype="f32")
        (said,) = forked.python(code, **{variable: names}).splitlines()
        assert said.startswith(f"CallError scale: {variable} has '")
        assert f"wanted the name of a variant or kernel{wanted}" in said
        assert names.rsplit(",", maxsplit=1)[-1] in said


@pytest.fixture
def cuda(standin: linked.Built, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = linked.load_module(standin.module)
    monkeypatch.setitem(sys.modules, "a_cuda_library", module)
    return module


def explain(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    assert main(["explain", *arguments, "--module", "a_cuda_library"]) == status
    said = capsys.readouterr()
    return said.err if status else said.out


def test_explain_passes_on_dtypes_devices_and_workspaces(cuda: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert "variant   plain_cpu\n" in explain(capsys, "scale", "N=8")
    assert "variant   wide_90a\n" in explain(capsys, "scale", "N=8", "--device", "cuda:1")
    said = explain(capsys, "scale", "N=8", "T=bf16", "+bias", "--device", "cuda:1")
    assert "variant   fast_bf16\n" in said
    assert "tensor    bias bf16 [N]" in said
    said = explain(capsys, "scale", "N=8", "--device=cuda:1", "--workspace=1024")
    assert "variant   fast_90a\n" in said
    assert "rejected  wide_90a: needs a workspace of 1048576 bytes, the caller's has 1024\n" in said
    said = explain(capsys, "scale", "N=0")
    assert "why       no output has elements, so nothing runs\n" in said


def test_explain_refuses(cuda: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in (
        ("N=8 T=f64", "scale: dtype 'T' is 'f64', wanted one of ('f32', 'bf16')"),
        ("N=8 T=bf16", "scale: tensors are on cpu:0 with T=bf16, for which this library has no variants"),
        ("N=8 X=3", "scale() has no argument 'X'; it is called as scale("),
        ("N=8 X=3", "or stated by ('N', 'T'), 'device' and 'workspace'"),
        ("N=one", "scale: dim 'N' is 'one', wanted a whole number"),
        ("N=99999999999999999999", "scale: dim 'N' is 99999999999999999999, wanted a whole number of 64 bits"),
        ("N=8 --device tpu", "device 'tpu' is not known; wanted 'cpu', 'cuda', 'cuda:1'"),
        ("N=8 --device cuda:7", "cuda:7: there is no such device; the driver sees 6"),
        ("N=8 --workspace much", "--workspace 'much' is not a number of bytes"),
        ("N=8 --workspace 99999999999999999999999", "too large"),
        ("N=8 device=cuda:0", "write --device cuda:0"),
        ("N=8 N=9", "'N' is given twice"),
        ("N=8 bias", "'bias' is not a fact of a call"),
        ("N=", "'N=' is not a fact of a call"),
    ):
        assert message in explain(capsys, "scale", *arguments.split(), status=1)
