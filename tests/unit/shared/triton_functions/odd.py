"""Functions whose constants, heuristics and configs are easily read wrongly, for tests."""

# ruff: noqa: N803 - constexprs are written in capitals

import functools
import sys

import triton
import triton.language as tl


class Sizes:
    """A constant that says nothing of itself."""

    def __init__(self, width):
        self.width = width


SIZES = tl.constexpr(Sizes(width=64))


@triton.constexpr_function
def double(value):
    return 2 * value


@triton.jit
def fills(x, FIRST: tl.constexpr, SECOND: tl.constexpr = float("-inf"), third=float("inf"), PAIR: tl.constexpr = None):
    tl.store(x, FIRST)
    tl.store(x + 1, SECOND)
    tl.store(x + 2, third)
    if PAIR is not None:
        tl.store(x + 3, PAIR[1][0])


@triton.heuristics({"EVEN": lambda args: args["n"] % 16 == 0, "PARTS": lambda args: args["n"] % 2})
@triton.jit
def flagged(x, n, EVEN: tl.constexpr, PARTS: tl.constexpr):
    tl.store(x, 3.0 if EVEN is True else 4.0)
    tl.store(x + 1, (tl.load(x) > 0) + (EVEN + PARTS))


@triton.jit(debug=True)
def asserts(x, n):
    tl.device_assert(n > 5, "n is small")
    tl.store(x, n)


@triton.jit
def calls_default(x, DOUBLE: tl.constexpr = double):
    tl.store(x + tl.arange(0, SIZES.width), DOUBLE(2))


@triton.jit
def product(a, BLOCK: tl.constexpr):
    at = a + tl.arange(0, BLOCK)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    tl.store(at, tl.dot(tl.load(at), tl.load(at)))


class Asked(int):
    """Triton calls what is a class while it compiles."""

    def __new__(cls, value):
        return value + len(sys.stdin.read())


@triton.constexpr_function
def asked(value):
    return Asked(value)


@triton.jit
def asks(x, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, asked(BLOCK)), 0.0)


@triton.autotune(configs=[triton.Config({"BLOCK": b}) for b in (64, 128)], key=["n"])
@triton.heuristics({"num_warps": lambda args: 8 if args["n"] > 1024 else 4})
@triton.jit
def warps_by_size(x, n, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), n)


@triton.autotune(
    configs=[triton.Config({"BLOCK": b}) for b in (64, 128)],
    key=["n"],
    prune_configs_by={"early_config_prune": lambda configs, named_args, **kwargs: configs[:1]},
)
@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def even(x, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    column = tl.arange(0, BLOCK)
    tl.store(x + column, n, mask=None if EVEN else column < n)


@functools.cache
def block_of(n):
    return 64 if n > 1000 else 32


def power_above(n):
    power = 1
    while power < n:
        power *= 2
    return power


def chosen_by(compute):
    @triton.heuristics({"BLOCK": compute})
    @triton.jit
    def function(x, n, BLOCK: tl.constexpr):
        tl.store(x + tl.arange(0, BLOCK), n)

    return function


by_set = chosen_by(lambda args: 64 if args["n"] in {1000, 3000} else 128)
by_dict = chosen_by(lambda args: {4096: 64}.get(args["n"], 128))
by_cache = chosen_by(lambda args: block_of(args["n"]))
by_bits = chosen_by(lambda args: (args["n"] + 15) & ~15)
by_loop = chosen_by(lambda args: power_above(args["n"]))
by_type = chosen_by(lambda args: 64 if isinstance(args["n"], int) and args["n"] == 777 else 128)


@triton.heuristics({"block": lambda args: 64})
@triton.jit
def of_nothing(x, n):
    tl.store(x, n)


def short(configs, named_args, **kwargs):
    assert named_args["x"].shape[0] == kwargs["n"]
    return [c for c in configs if c.kwargs["BLOCK"] <= kwargs["n"]]


@triton.autotune(
    configs=[triton.Config({"BLOCK": b}, pre_hook=lambda args: None) for b in (64, 128)],
    key=["n"],
    prune_configs_by={"early_config_prune": short},
)
@triton.jit
def on_blocks(x, processors, n: tl.constexpr, BLOCK: tl.constexpr):
    for at in range(tl.program_id(0) * BLOCK, n, processors * BLOCK):
        x.store([at], tl.full((BLOCK,), n, tl.float32))


def halve(configs, named_args, **kwargs):
    for config in configs:
        config.kwargs["BLOCK"] //= 2
    return configs


@triton.autotune(configs=[triton.Config({"BLOCK": 64})], key=["n"], prune_configs_by={"early_config_prune": halve})
@triton.jit
def changes_configs(x, n, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), n)


@triton.autotune(configs=[triton.Config({"BLOCK": None, "waves_per_eu": None})], key=["n"])
@triton.jit
def none_for_default(x, n, BLOCK: tl.constexpr = 64):
    tl.store(x, n if BLOCK is None else BLOCK)


@triton.autotune(configs=[triton.Config({"BLOCK": 64, "launch_cooperative_grid": True})], key=["n"])
@triton.jit
def waits_for_all(x, n, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), n)


class Holder:
    """Packages keep functions in classes."""

    @staticmethod
    @triton.jit
    def held(x, n, BLOCK: tl.constexpr):
        rows = tl.arange(0, BLOCK)
        tl.store(x + rows, n, mask=rows < n)


@triton.heuristics({"BLOCK": lambda args: doubled(args["n"]), "EVEN": lambda args: -args["n"] % 64 == 0})
@triton.jit
def by_waves(x, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    rows = tl.arange(0, BLOCK)
    tl.store(x + rows, n, mask=rows < n)


def doubled(n):
    """The largest block of at most 2048 that leaves more than one wave of 132 programs."""
    block, most = 1, min(n, 2048)
    while block <= most:
        if triton.cdiv(n, block) / 132 > 1 and block * 2 <= most:
            block *= 2
        else:
            break
    return block
