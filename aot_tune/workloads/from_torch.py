"""What torch wrote about calls of its operators: profiler traces or operator inputs, recognised by their text."""

from __future__ import annotations

import gzip
import zlib

import msgspec

from aot_tune.support.errors import SpecError
from aot_tune.workloads.from_operator_inputs import map_inputs, map_inputs_log
from aot_tune.workloads.from_profiler import map_profile
from aot_tune.workloads.mapped_calls import MappedCalls

__all__ = ["map_torch"]

_GZIP = b"\x1f\x8b"
_EVENTS = "traceEvents"
_WHY = "it must be a trace of torch.profiler or a file of operator inputs"
_FIX = "write one with export_chrome_trace, from a profile with record_shapes=True"


def map_torch(data: bytes, name: str, calls: MappedCalls) -> None:
    """Count the calls of a file.

    Raises:
        SpecError: when it has another form, or cannot be read.
    """
    if data.startswith(_GZIP):
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise SpecError(f"{name} cannot be unpacked: {error}", fix="record it again") from error
    if data.lstrip().startswith(b"Operator: "):
        map_inputs_log(data.decode(errors="replace"), name, calls)
        return
    try:
        document = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SpecError(f"{name} is not JSON: {error}", why=_WHY, fix=_FIX) from error
    if isinstance(document, dict) and _EVENTS in document:
        document = document[_EVENTS]
    if isinstance(document, list):
        map_profile(document, name, calls)
    elif isinstance(document, dict):
        map_inputs(document, name, calls)
    else:
        raise SpecError(f"{name} holds {str(document)[:60]}, no calls", why=_WHY, fix=_FIX)
