"""Options: precedence, checks and their table."""

import pytest

from aot_tune.plan.options import misspelt, resolve
from aot_tune.support.errors import OptionError


def test_cmake_wins_over_the_environment() -> None:
    environment = {"AOT_TUNE_MODE": "tune", "AOT_TUNE_EFFORT": "quick"}
    options = resolve({"AOT_TUNE_MODE": "generic"}, environment)
    assert (options.mode, options.effort) == ("generic", "quick")


def test_operators_are_named_or_all_or_those_of_the_library() -> None:
    for value, named in (("*", ()), ("gemm; softmax", ("gemm", "softmax")), ("", ())):
        assert resolve({"AOT_TUNE_OPERATORS": value}, {"AOT_TUNE_OPERATORS": ""}).operators == named
    assert resolve({"AOT_TUNE_OPERATORS": "*"}, {"AOT_TUNE_OPERATORS": "gemm"}).operators == ()


def test_a_misspelt_variable_of_the_environment_is_told() -> None:
    right = {
        "AOT_TUNE_BUDGET": "5",
        "AOT_TUNE_CHECK": "first",
        "AOT_TUNE_TEST_TRITON": "/x",
        "AOT_TUNER": "1",
        "HOME": "/",
    }
    assert misspelt(right) == []
    (line,) = misspelt({**right, "AOT_TUNE_BUGDET": "5"})
    assert (
        line == "AOT_TUNE_BUGDET in the environment is not an option and has no effect; did you mean AOT_TUNE_BUDGET?"
    )


@pytest.mark.parametrize(
    ("name", "value", "right"),
    [
        ("AOT_TUNE_TARGETS", "cuda-sm_80,cuda-sm_90a", "cuda-sm_80;cuda-sm_90a"),
        ("AOT_TUNE_TARGETS", "native , ;hip,", "native;hip"),
        ("AOT_TUNE_EXCLUDE_BACKENDS", "nvcc,cublaslt", "nvcc;cublaslt"),
        ("AOT_TUNE_DEVICE", "NVIDIA H200, cpu-*", "NVIDIA H200;cpu-*"),
    ],
)
def test_commas_in_a_list_are_met_with_the_list_as_it_is_to_be(name: str, value: str, right: str) -> None:
    with pytest.raises(OptionError) as caught:
        resolve({name: value}, {})
    assert caught.value.what == f"{name}={value!r} has a comma"
    assert "semicolons" in caught.value.why
    assert f" {name}='{right}'," in caught.value.fix


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("AOT_TUNE_MODE", "reply", r"AOT_TUNE_MODE='reply' is not allowed\n  fix: did you mean 'replay'"),
        ("AOT_TUNE_EFFORT", "fast", "'fast' is not allowed"),
        ("AOT_TUNE_BUDGET", "soon", "'soon' is not a positive number of seconds"),
        ("AOT_TUNE_BUDGET", "-1", "not a positive number"),
        ("AOT_TUNE_BUDGET", "nan", "not a positive number"),
        ("AOT_TUNE_BUDGET", "inf", "not a positive number"),
        ("AOT_TUNE_JOBS", "0", "not a whole number"),
        ("AOT_TUNE_JOBS", "two", "not a whole number"),
        ("AOT_TUNE_THREADS", "1.5", "not a whole number"),
        ("AOT_TUNE_MAX_REGRET", "1.5", "write for example AOT_TUNE_MAX_REGRET=0.02"),
        ("AOT_TUNE_MAX_VARIANTS", "0", "is not a whole number from 1 to 4096"),
        ("AOT_TUNE_OLDER_CPUS", "off", "is not a whole number from 0 to 4096"),
        ("AOT_TUNE_MOD", "auto", "unknown option AOT_TUNE_MOD\n  fix: did you mean 'AOT_TUNE_MODE'"),
    ],
)
def test_bad_values_name_the_option_the_value_and_the_remedy(name: str, value: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        resolve({name: value}, {})
