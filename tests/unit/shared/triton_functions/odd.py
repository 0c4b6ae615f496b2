"""Functions whose constants, heuristics and configs are easily read wrongly, for tests."""

# ruff: noqa: N803 - constexprs are written in capitals

import sys

import triton
import triton.language as tl


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
by_bits = chosen_by(lambda args: (args["n"] + 15) & ~15)
by_loop = chosen_by(lambda args: power_above(args["n"]))
by_type = chosen_by(lambda args: 64 if isinstance(args["n"], int) and args["n"] == 777 else 128)


@triton.heuristics({"block": lambda args: 64})
@triton.jit
def of_nothing(x, n):
    tl.store(x, n)


def halve(configs, named_args, **kwargs):
    for config in configs:
        config.kwargs["BLOCK"] //= 2
    return configs


@triton.autotune(configs=[triton.Config({"BLOCK": 64})], key=["n"], prune_configs_by={"early_config_prune": halve})
@triton.jit
def changes_configs(x, n, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), n)
