"""The variables of the environment that a library reads, once per process."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RunTimeVariable:
    """A variable and what it does, as Markdown; links are relative to the folder of the documents."""

    name: str
    help: str


RUN_TIME_VARIABLES = (
    RunTimeVariable(
        "AOT_TUNE_FORCE",
        "variants or kernels that calls must use, such as `cuda_rows,gemm:cublaslt`. A call fails if the forced "
        "variant refuses it, or if the vendor's library is missing",
    ),
    RunTimeVariable(
        "AOT_TUNE_EXCLUDE",
        "variants or kernels that calls never use, such as `cublaslt*,softmax:rows*` (`*` is any characters). The next "
        "best variant serves instead. The generic variant always stays, and `AOT_TUNE_FORCE` wins",
    ),
    RunTimeVariable(
        "AOT_TUNE_OVERRIDE",
        "a file of rules, such as `gemm: 16<=M<=64, N=4096, T=bf16 -> cublaslt`: which variant serves an "
        "operator's calls within ranges of dims ([overrides.md](../overrides.md)). If a line is bad, every call fails",
    ),
    RunTimeVariable(
        "AOT_TUNE_WARN",
        "`unseen`: one line on stderr for each operator, at the first call that is unlike all that was measured "
        "([dispatch.md](../dispatch.md))",
    ),
    RunTimeVariable(
        "AOT_TUNE_CHECK",
        "`first`: the first call of each variant is compared with the generic variant, within twice the operator's "
        "tolerance; `100`: every hundredth. If they differ, one line on stderr tells, and from then on the generic "
        "variant serves in place of that variant. A number of an input that is out of the range that the operator "
        "declares, such as a page that there is not, is an error. Calls in a CUDA graph's capture are not compared",
    ),
    RunTimeVariable(
        "AOT_TUNE_TRACE",
        "a file in which the library counts its calls, as problems; `%p` is the number of the process "
        "([tracing.md](../tracing.md)). If the file cannot be written, calls go on, and one line on stderr says so",
    ),
    RunTimeVariable(
        "AOT_TUNE_PROFILE",
        "`nvtx`: each call is a range of NVTX, with operator, variant, dims and bytes, for profilers such as Nsight "
        "Systems. A file: each call is a line of JSON in it, with its time too; on a GPU that of the launch "
        "([troubleshooting.md](../troubleshooting.md#see-the-calls-of-a-program))",
    ),
    RunTimeVariable(
        "AOT_TUNE_ONLINE",
        "`1`, `0.5%`: calls that nobody measured try other variants, within that share of the time "
        "([dispatch.md](../dispatch.md#trying-variants-at-run-time)). `0` tries nothing, and takes earlier choices. "
        "`1%:FILE` keeps choices in that file",
    ),
    RunTimeVariable(
        "AOT_TUNE_KERNEL_DIR",
        "for debugging: a folder whose `<symbol>.bin` replaces the embedded code of the Triton kernel with that symbol",
    ),
    RunTimeVariable(
        "AOT_TUNE_CPU_LEVEL",
        "1 to 6, or `v1`, `v2`, `v3`, `v4`, `v4-bf16`, `v4-amx`: act as if the CPU had at most that level "
        "([targets.md](../targets.md))",
    ),
)


def variables_table() -> str:
    """The variables as a table in Markdown."""
    rows = ["| variable | meaning |", "|---|---|"]
    return "\n".join([*rows, *(f"| `{v.name}` | {v.help} |" for v in RUN_TIME_VARIABLES)])
