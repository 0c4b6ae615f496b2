"""Whose records decide for a target that is not measured: AOT_TUNE_DEVICE, what is here, else the first by name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from databases import DEVICE, a_database

from aot_tune.database import OperatorDatabase, operator_digest
from aot_tune.errors import OptionError
from aot_tune.library import bundled_templates, load_operator
from aot_tune.pipeline.recorded import _most_fitting
from aot_tune.preflight import check_devices
from aot_tune.spec import Target

GEMM = load_operator(bundled_templates() / "gemm")


def recorded(name: str, family: str = "cpu", operator: str = "gemm") -> OperatorDatabase:
    slug = name.lower().replace(" ", "-")
    device = msgspec.structs.replace(DEVICE, name=name, slug=slug, family=family, identity={"n": name})
    return msgspec.structs.replace(a_database(), contract=operator_digest(GEMM), device=device, operator=operator)


BIG, SMALL = recorded("Big One"), recorded("Small One")
TARGET = Target(name=next(iter(BIG.targets)), family="cpu", level=1)


@pytest.mark.parametrize(
    ("wanted", "here", "found"),
    [
        ((), None, BIG),
        ((), SMALL, SMALL),
        (("Small One",), None, SMALL),
        (("small-*",), None, SMALL),
        (("Small*",), BIG, SMALL),
        (("* One",), SMALL, SMALL),
        (("A card",), None, BIG),  # of another family: nothing is said of this one
        (("A card", "Small*"), None, SMALL),
        (("Other",), None, None),  # it has records, but none of the operator
    ],
)
def test_the_devices_that_are_named_decide(
    wanted: tuple[str, ...], here: OperatorDatabase | None, found: OperatorDatabase | None
) -> None:
    databases = [SMALL, recorded("A card", "cuda", "softmax"), BIG, recorded("Other", operator="softmax")]
    session: Any = SimpleNamespace(
        databases=databases, devices=[here.device] if here else [], options=SimpleNamespace(device=wanted)
    )
    assert _most_fitting(session, GEMM, TARGET) == found


def test_a_device_without_a_record_is_refused_with_those_that_have_some() -> None:
    check_devices((), [])
    check_devices(("Big*", "small-one"), [BIG, SMALL])
    with pytest.raises(OptionError, match="has 'Big 1ne', of which there is no record") as refused:
        check_devices(("Small One", "Big 1ne"), [BIG, SMALL])
    assert refused.value.fix == "did you mean 'Big One'?"
