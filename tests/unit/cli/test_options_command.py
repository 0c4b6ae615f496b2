"""`aot-tune options`: every option, in the columns that there are, and what the environment sets."""

from __future__ import annotations

import pytest

from aot_tune.cli.options_command import options_text
from aot_tune.link.run_time_variables import RUN_TIME_VARIABLES
from aot_tune.plan.options import OPTIONS
from aot_tune.support.errors import OptionError


@pytest.mark.parametrize("width", [20, 40, 80, 120])
def test_all_are_there_and_fit(width: int) -> None:
    text = options_text((), {}, width)
    lines = text.split("\n")
    for one in (*OPTIONS, *RUN_TIME_VARIABLES):
        assert any(line.split(" ")[0] == one.name for line in lines), one.name
    longest = max((line for line in lines if not line.startswith("AOT_TUNE_")), key=len)
    assert len(longest) <= max(width, 60)  # a pattern or a path that is longer than a line is not broken
    assert "](" not in text


def test_one_alone_with_what_is_set() -> None:
    text = options_text(("budget",), {"AOT_TUNE_BUDGET": "300"}, 80)
    assert text.startswith("AOT_TUNE_BUDGET  (default: empty)\n  now '300', from the environment\n  seconds")
    assert text.count("AOT_TUNE_") == 1


def test_a_name_that_is_none_is_told() -> None:
    with pytest.raises(OptionError, match="there is no option 'AOT_TUNE_BUGDET'") as caught:
        options_text(("bugdet",), {}, 80)
    assert "AOT_TUNE_BUDGET" in str(caught.value)
