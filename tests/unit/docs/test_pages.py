"""The pages: what they show is right and is that of the examples, their links lead somewhere, Sphinx builds them."""

import json
import re
import statistics
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from bundled import OPERATORS
from places import ROOT

import aot_tune.spec as spec
from aot_tune.bench.devices.family import family
from aot_tune.bench.host.odd_problems import derived_checks
from aot_tune.bench.protocol.measurement_records import BASELINE, Policy
from aot_tune.bench.worker.reference_results import read_truth, write_truth
from aot_tune.database.files import load_database
from aot_tune.plan.stated_workloads import ReadWorkload, read_workload
from aot_tune.render.triton.recipe import fragment_data, parameters_of
from aot_tune.select import choose_variants, decide, selection
from aot_tune.spec import Operator, elementwise, generators, problem
from aot_tune.spec.fragment_programs import bind_fragments
from aot_tune.spec.load_operators import load_operator
from aot_tune.support.errors import Mistakes, SpecError

DOCS = ROOT / "docs"
WRITTEN = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "benchmarks").glob("*.md")),
    *(p for p in sorted(DOCS.rglob("*.md")) if "reference" not in p.parts),
]
LONGEST, LIMITS = 12_000, {"README.md": 9_000, "CONTRIBUTING.md": 6_000}
"""Bytes of a page: what is longer is read by nobody, and is split by topic."""
REFERENCE = [DOCS / "reference" / f"{name}.md" for name in ("options", "commands", "cmake")]
"""What is generated and kept. A build of the site writes other files beside them."""
SHOWN = [
    (page, path, code)
    for page in WRITTEN
    for path, code in re.findall(r"<!-- (examples/\S+) -->\n```\w+\n(.*?)```", page.read_text(), re.DOTALL)
]
"""A page, and what it shows of which file: `<!-- examples/... -->` stands in front of the code."""


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def anchors(page: Path) -> set[str]:
    """Those that a renderer makes of the headings."""
    heads = re.findall(
        r"^#+ (.*)$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE), re.MULTILINE
    )
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


def test_code_is_that_of_the_examples() -> None:
    assert {page.name for page, _, _ in SHOWN} >= {"change-a-kernel.md", "triton.md", "cuda-kernel.md"}
    for page, path, code in SHOWN:
        assert code.strip("\n") in (ROOT / path).read_text(), f"{name(page)} shows other code than {path} has"


def test_no_page_is_too_long() -> None:
    long = [name(page) for page in WRITTEN if page.stat().st_size > LIMITS.get(name(page), LONGEST)]
    assert not long, "split it by topic; a reader looks for one thing"


def test_links_lead_somewhere() -> None:
    for page in (*WRITTEN, *REFERENCE):
        text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if target.startswith(("http://", "https://")):
                continue
            path, _, anchor = target.partition("#")
            other = (page.parent / path).resolve() if path else page
            assert other.exists(), f"{name(page)}: {target} is not there"
            assert not anchor or anchor in anchors(other), f"{name(page)}: {target}: no such heading"


def test_every_page_is_linked_from_the_readme_or_an_index() -> None:
    indices = [ROOT / "README.md", *DOCS.rglob("README.md")]
    linked = {(i.parent / t).resolve() for i in indices for t in re.findall(r"\]\(([^)#\s]+\.md)", i.read_text())}
    assert {*WRITTEN, *REFERENCE} - {ROOT / "README.md", *(ROOT / "benchmarks").glob("*.md")} <= {
        *linked,
        DOCS / "index.md",
    }


def test_scripts_that_pages_name_are_there() -> None:
    folder = ROOT / "benchmarks"
    named = {
        n for page in [*WRITTEN, folder / "card.sh"] for n in re.findall(r"benchmarks/([\w./-]+\w)", page.read_text())
    }
    named |= {n for page in folder.glob("*.md") for n in re.findall(r"`(\w+\.(?:py|cpp|sh))`", page.read_text())}
    assert {"cpu.py", "cuda.py", "worker.py"} <= named
    assert not [n for n in named if not (folder / n).exists()]


EXAMPLES = ROOT / "examples"
WHOLE = {
    "jax": ("jax_model/model.py", 3),
    "torch": ("torch_model/model.py", 4),
    "models": ("torch_model/patched.py", 2),
}
"""A page, the example that holds all its blocks, and their number. tests/integration runs the examples."""


def text_of(name: str) -> str:
    return (DOCS / f"{name}.md").read_text()


def test_blocks_are_those_of_an_example_and_its_names_are_declared() -> None:
    for name, (path, count) in WHOLE.items():
        example = (EXAMPLES / path).read_text()
        blocks = re.findall(r"```python\n(.*?)```", text_of(name), re.DOTALL)
        assert len(blocks) == count, name
        assert [b for b in blocks if b not in example] == []
        for module, used in re.findall(r"aot_tune\.(jax|torch)\.(\w+)", text_of(name) + example):
            assert f'"{used}"' in (ROOT / "aot_tune" / module / "__init__.py").read_text(), used


def test_the_triton_operator_is_that_of_the_example_and_refusals_are_messages_of_the_code() -> None:
    decorators, operator, *_ = re.findall(r"```python\n(.*?)```", text_of("triton"), re.DOTALL)
    templates = EXAMPLES / "triton_package" / "templates"
    assert operator.partition("\n")[2] == (templates / "rms_norm" / "operator.py").read_text()
    assert decorators.partition("\n")[2].partition("def ")[0] in (templates / "kernels.py").read_text()
    sources = "".join(p.read_text() for p in (ROOT / "aot_tune").rglob("*.py"))
    plain = re.sub(r'"\s*\n\s*f?"', "", sources)
    messages = re.findall(r"^\| `([^`]+)`", text_of("triton-errors"), re.MULTILINE)
    assert len(messages) >= 10
    for message in messages:
        words = [w.strip(" ,:") for w in re.split(r"\.\.\.|'[a-zA-Z]+'|=|\d[\d.]*", message)]
        assert [w for w in words if w and w not in plain] == [], message


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)


def test_the_operator_of_the_page_about_operators_is_one(tmp_path: Path) -> None:
    code = blocks("operators.md")[0]
    folder = tmp_path / "route"
    folder.mkdir()
    (folder / "operator.py").write_text(code)
    operator = load_operator(folder)
    (check,) = (c for c in derived_checks(operator) if c.integers)
    write_truth(operator, check, tmp_path / "truth", 1)
    (_, values) = read_truth(tmp_path / "truth")["out"]
    assert values.any()
    assert np.array_equal(values, np.rint(values))


def test_tensors_that_are_written_in_place_are_declared_so() -> None:
    rows, columns = spec.dims("R D")
    written = [block for block in blocks("in-place.md") if "tensors=(" in block]
    for block, outputs in zip(written, (["x", "residual"], ["out"]), strict=True):
        tensors = eval(f"dict({block})", {"Tensor": spec.Tensor, "R": rows, "D": columns})["tensors"]
        assert [t.name for t in tensors if t.output or t.inout] == outputs


def test_all_values_are_in_the_table_of_inputs() -> None:
    functions = {n for n in generators.__all__ if n.islower() and n not in ("check_values", "largest_integer")}
    functions |= {"drawn"}
    assert functions == set(re.findall(r"^\| `(\w+)\(", (ROOT / "docs" / "inputs.md").read_text(), re.MULTILINE))
    assert functions <= set(spec.__all__)


OPERATOR, CALLS = blocks("formulas.md")


@pytest.fixture
def op(tmp_path: Path) -> Operator:
    folder = tmp_path / "mixture"
    folder.mkdir()
    (folder / "operator.py").write_text(OPERATOR)
    return load_operator(folder)


def test_the_operator_of_the_page_about_formulas(op: Operator) -> None:
    draws = np.random.default_rng(1)
    m, n, k = 4, 6, 3
    a, b, bias, slopes = (draws.normal(size=s) for s in ((m, k), (k, n), (n,), (m,)))
    call = SimpleNamespace(a=a, b=b, bias=bias, slopes=slopes, alpha=0.75)
    bind_fragments(op, problem(M=m, N=n, K=k), np, call)
    q, j = np.arange(m)[:, None], np.arange(n)
    with np.errstate(over="ignore"):
        score = np.where(q < j, -1e9, a @ b) + slopes[:, None] * (j - q)
        assert np.allclose(op.reference(np, call)["out"], score / (1 + np.exp(-score)) + bias * 0.75)


def test_what_functions_of_triton_are_passed(op: Operator) -> None:
    calls = re.findall(r"(\w+)\(acc, q\[:, None\], k\[None, :\], (.*)\)", CALLS)
    assert [name for name, _ in calls] == ["score", "epilogue"]
    for name, given in calls:
        assert sorted(re.findall(r"(\w+)=", given)) == sorted(parameters_of(fragment_data(op, name)))


def test_every_function_of_formulas_is_on_its_page() -> None:
    for name in elementwise.__all__:
        assert re.search(rf"\b{name}\b", text_of("formulas")) or name == "absolute", name  # which `abs` is


WORKLOADS = text_of("workload-files")
(LINES,) = re.findall(r"```json\n(.*?)```", WORKLOADS, re.DOTALL)


def read_lines(path: Path, text: str) -> ReadWorkload:
    path.write_text(text)
    operators = {n: OPERATORS[n] for n in ("gemm", "softmax")}
    mistakes = Mistakes()
    found = read_workload([str(path)], ("ops", "aot_tune"), operators, (), {}, mistakes)
    mistakes.tell()
    return found


def test_lines_of_workload_files_are_right(tmp_path: Path) -> None:
    found = read_lines(tmp_path / "serving.jsonl", LINES)
    stated = {n: [(p.problem.id, p.weight) for p in one.problems] for n, one in found.plan.operators.items()}
    assert stated == {
        "gemm": [
            ("M=16 N=4096 K=4096 b:10 T=bf16", 12.5),
            ("M=16 N=14336 K=4096 b:10 +bias activation=gelu T=bf16", 3.0),
        ],
        "softmax": [("R=512 D=4096 T=f16", 1.0)],
    }


def test_all_fields_of_workload_files_are_in_the_table(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        read_lines(tmp_path / "w.jsonl", '{"nonsense": 1}')
    rows = "\n".join(re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", WORKLOADS, re.MULTILINE))
    assert set(re.findall(r"`(\w+)`", rows)) == set(caught.value.why.removeprefix("a line has ").split(", "))


def test_a_mistake_in_a_workload_file_is_told_as_the_page_says(tmp_path: Path) -> None:
    (told,) = re.findall(r"```\naot-tune: /home/me/(.*?)\n  why: (.*?) \.\.\.\n  fix: (.*?)\n```", WORKLOADS, re.DOTALL)
    with pytest.raises(SpecError) as caught:
        read_lines(tmp_path / "serving.jsonl", LINES.replace("gelu", "glu"))
    error = caught.value
    assert error.what == f"{tmp_path}/{told[0]}"
    assert error.why.startswith(told[1])
    assert error.fix == told[2]


def plain(page: str) -> str:
    """The words of a page without its line breaks."""
    return " ".join((ROOT / page).read_text().split())


def stated(module: str, name: str) -> str:
    """The value of a constant, as a module of the package states it."""
    (value,) = re.findall(rf"^{name} = (.*)$", (ROOT / "aot_tune" / module).read_text(), re.MULTILINE)
    return str(value)


def test_numbers_of_pages_are_those_of_the_code() -> None:
    limits, cuda = selection.SURVEYED, family("cuda").policy()
    assert limits.worst is not None
    assert (selection.REGRET_LIMIT, stated("bench/worker/cuda_memory.py", "GUARD")) == (0.005, "4096")
    assert [stated("select/decide.py", n) for n in ("_HELD_OUT", "_FOLDS", "_WORTH_ITS_ROWS")] == ["5", "3", "0.003"]
    assert stated("select/decide.py", "_SHARES") == "tuple(eighths / 8 for eighths in range(9))"
    claims = {
        "docs/dispatch.md": (
            f"a regret of {limits.regret:.0%} in the mean".replace("%", " %"),
            f"at most {limits.variants} variants of each kind (`AOT_TUNE_MAX_VARIANTS`) and {limits.together} of",
            "0.5 % in the mean of the workload and three times that on a problem",
            "A fifth of the surveyed shapes is held out",
            f"may lose {decide.MEAN_LIMIT * 100:.0f} % in the mean, and {decide.P95_LIMIT * 100:.0f} % on all but a",
        ),
        "docs/workload-files.md": (f"may be more than {limits.worst * 100:.0f} % off",),
        "docs/internals/dispatch.md": (
            "divided into three parts",
            "cover none of these errors, an eighth, two, ... or all",
            "better by 0.3 %",
        ),
        "docs/concepts/verification.md": ("On a GPU 4 KiB on each side show writes",),
        "docs/concepts/README.md": ("Nothing ships unverified, where its device is here.",),
        "docs/surveys.md": (
            f"Up to {choose_variants.SCOUTS} configs",
            f"The {choose_variants.PRESELECTED} candidates that pay off most",
        ),
        "docs/measuring.md": (
            f"fill the last cache twice on a CPU, a GPU's L2 four times, and at most {cuda.copies}",
            f"both of the first two are over {cuda.screen_stop} x the best so far",
            "until a sample lasts 50 us",
        ),
        "docs/measuring-gpu.md": (f"until a sample lasts {cuda.sample_ns // 1000} us",),
    }
    assert (cuda.cold_factor, Policy().cold_factor, Policy().sample_ns) == (4.0, 2.0, 50_000)
    assert [(page, c) for page, said in claims.items() for c in said if c not in plain(page)] == []
    (table,) = re.findall(r"^\| line \| holds \|\n.*?\n\n", text_of("records"), re.MULTILINE | re.DOTALL)
    told = re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)))
    record = next((ROOT / "tuning").glob("cpu-*/softmax.jsonl")).read_text().splitlines()
    assert list(dict.fromkeys(next(iter(json.loads(line))) for line in record)) == told


def test_figures_of_a_cpu_are_those_of_the_record_and_of_the_results() -> None:
    """What its races say of f32: the fastest baseline over the winner, and its mean or least over the problems."""

    def speedups(operator: str) -> dict[str, float]:
        (path,) = (ROOT / "tuning").glob(f"cpu-amd-epyc-*/{operator}.jsonl")
        races: dict[tuple[str, str], dict[bool, float]] = {}
        for m in load_database(path).measurements:
            if m.final and m.race and "T" not in m.problem.dtypes:
                side, time = races.setdefault((m.problem.id, m.race), {}), statistics.median(m.final)
                baseline = m.candidate.startswith(BASELINE)
                side[baseline] = min(time, side.get(baseline, time))
        return {p: side[True] / side[False] for (p, _), side in races.items() if len(side) == 2}

    products = speedups("gemm")
    few = [x for p, x in products.items() if p.startswith(("M=1 ", "M=16 "))]
    mean = [f"{statistics.geometric_mean(x):.2f} x" for x in (products.values(), few)]
    rows = ("softmax", "rms_norm", "layer_norm", "silu_mul")
    least = ", ".join(f"{min(speedups(operator).values()):.2f}" for operator in rows)
    page = plain("docs/figures.md")
    assert (
        f"f32: `gemm`, {len(products)} problems; at most 16 rows | the faster of numpy and torch | {'; '.join(mean)} |"
        in page
    )
    assert f"least | torch | {least} x |" in page
    drawn = dict(re.findall(r'end">(\w+)</text>.*?>([\d.]+)</text>\n', (DOCS / "figures.svg").read_text()))
    results = (ROOT / "benchmarks" / "results" / "cpu-epyc.md").read_text()
    for operator in ("gemm", *rows):
        assert re.search(rf"^\| {operator} \| \d+ \| {drawn[operator]} x \|", results, re.MULTILINE), operator


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    folders = [tmp_path / "trees", ROOT / "docs", tmp_path / "site"]
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-d", *folders]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "How a build works" in (tmp_path / "site" / "concepts" / "README.html").read_text()
