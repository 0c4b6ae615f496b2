"""Functions that cannot be read or compiled, for tests."""

# ruff: noqa: N803 - constexprs are written in capitals

import os
import time

import triton
import triton.language as tl


def not_compiled(x):
    return x


@triton.jit
def inner(x, BLOCK: tl.constexpr):
    return tl.load(x + tl.arange(0, BLOCK)) + tl.no_such_function(x)


@triton.jit
def calls_wrong(x, BLOCK: tl.constexpr):
    tl.store(x, tl.sum(inner(x, BLOCK)))


@triton.jit
def refuses(x, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK > 64, "BLOCK must be over 64")
    tl.store(x + tl.arange(0, BLOCK), 0.0)


class EndProcess(int):
    """Triton calls what is a class while it compiles."""

    def __new__(cls, value):
        os.abort()


class TakeLong(int):
    def __new__(cls, value):
        until = time.monotonic() + 60
        while time.monotonic() < until:
            pass
        return value


@triton.constexpr_function
def end_process(value):
    return EndProcess(value)


@triton.constexpr_function
def take_long(value):
    return TakeLong(value)


@triton.jit
def crashes(x, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, end_process(BLOCK)), 0.0)


@triton.jit
def hangs(x, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, take_long(BLOCK)), 0.0)


@triton.jit
def needs_much(a, b, c, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for k in range(4):
        total = tl.dot(tl.load(a + at + k), tl.load(b + at + k), total)
    tl.store(c + at, total)


@triton.heuristics({"BLOCK": lambda args: 64 if args["x"][0] > 0 else 128})
@triton.jit
def reads_data(x, n, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), 0.0)


@triton.heuristics({"BLOCK": lambda args: args["BM"] * 2})
@triton.autotune(configs=[triton.Config({"BM": 16}), triton.Config({"BM": 32})], key=["n"])
@triton.jit
def outer_reads_config(x, n, BM: tl.constexpr, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), 0.0)


@triton.heuristics({"BLOCK": lambda args: "wide"})
@triton.jit
def gives_text(x, n, BLOCK: tl.constexpr):
    tl.store(x, n)


@triton.autotune(configs=[triton.Config({"BLOCK": 64}, pre_hook=lambda args: None)], key=["n"])
@triton.jit
def hooked(x, n, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), 0.0)


def make_new(configs, named_args, **kwargs):
    return [triton.Config({"BLOCK": 16})]


@triton.autotune(
    configs=[triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})],
    key=["n"],
    prune_configs_by={"early_config_prune": make_new},
)
@triton.jit
def invents_configs(x, n, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), 0.0)


@triton.autotune(configs=[triton.Config({"BLOCK": 0.5})], key=["n"])
@triton.jit
def odd_config(x, n, BLOCK: tl.constexpr):
    tl.store(x, n)


@triton.heuristics({"BLOCK": lambda args: 64 if args["x"].data_ptr() % 32 == 0 else 128})
@triton.jit
def reads_address(x, n, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), 0.0)


@triton.heuristics({"BLOCK": lambda args: int(args["n"] / 2)})
@triton.jit
def divides(x, n, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), 0.0)


@triton.autotune(
    configs=[triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})],
    key=["n"],
    prune_configs_by={"early_config_prune": lambda configs, named_args, **kwargs: [kwargs["not_there"]]},
)
@triton.jit
def fails_to_prune(x, n, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), 0.0)


@triton.jit
def offset_of_64_bits(x, n, BLOCK: tl.constexpr):
    rows = tl.make_tensor_descriptor(x, [BLOCK], [1], [BLOCK])
    rows.store([n], rows.load([n]) + 1)
