"""Records, messages and framing of the bench: canonical, strict, whole."""

import os
import struct
import typing

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aot_tune.bench.protocol import messages
from aot_tune.bench.protocol.channel import LIMIT, ClosedError, Frames, read_frame, write_frame
from aot_tune.bench.protocol.measurement_records import Check, Deadlines, GpuTiming, Measurement, Policy
from aot_tune.spec import problem


def measurement(**fields: typing.Any) -> Measurement:
    base = {"candidate": "c", "code": "o", "problem": problem(M=1), "device": "d", "policy": "p", "status": "ok"}
    return Measurement(**{**base, **fields})


def changed(value: object) -> object:
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return f"not {value}"
    if isinstance(value, Deadlines):
        return msgspec.structs.replace(value, bench=value.bench + 1)
    return GpuTiming() if value is msgspec.UNSET else value + 1


def test_every_field_of_a_policy_is_in_its_digest() -> None:
    policy = Policy()
    for name in policy.__struct_fields__:
        other = msgspec.structs.replace(policy, **{name: changed(getattr(policy, name))})
        assert other.digest != policy.digest, name
    gpu = GpuTiming()
    policy = Policy(gpu=gpu)
    for name in gpu.__struct_fields__:
        other = msgspec.structs.replace(gpu, **{name: changed(getattr(gpu, name))})
        assert Policy(gpu=other).digest != policy.digest, name


def test_what_another_process_did_to_a_candidate_does_not_last() -> None:
    assert measurement().lasting
    assert measurement(status="wrong-result").lasting
    assert measurement(status="crashed", reason="SIGSEGV in load").lasting
    assert measurement(status="oom", reason="killed by SIGSEGV in verify").lasting
    assert measurement(status="failed", reason="candidate_launch returned 5").lasting
    assert not measurement(status="timeout").lasting
    assert not measurement(status="no-result").lasting
    assert not measurement(status="oom", reason="killed by SIGKILL in verify").lasting
    assert not measurement(status="failed", reason="in the worker: OSError: no space").lasting


SAMPLES: dict[type, object] = {
    str: "x", int: 1, float: 1.5, bool: True, tuple[str, ...]: ("a",), tuple[float, ...]: (1.0,),
    dict[str, str]: {"a": "b"}, dict[str, int]: {"a": 1},
}  # fmt: skip


def filled(kind: type) -> typing.Any:
    """A message with values in all of its fields."""
    hints, own = typing.get_type_hints(kind), {"check": Check(problem=problem(M=1), special="x"), "status": "oom"}
    fields = {}
    for field in msgspec.structs.fields(kind):
        if field.name in own or hints[field.name] in SAMPLES:
            fields[field.name] = own.get(field.name) or SAMPLES[hints[field.name]]
        elif field.name == "device":
            fields["device"] = {"a": 1, "b": "c"}
        else:
            assert field.name in ("best_ns", "bitwise"), field.name
    return kind(**fields)


def test_every_message_survives_its_encoding_and_what_is_none_is_refused() -> None:
    for union, decode in ((messages.Request, messages.decode_request), (messages.Reply, messages.decode_reply)):
        for kind in typing.get_args(union):
            message = filled(kind)
            assert decode(messages.encode(message)) == message
    for data in (b'{"type":"nothing"}', b'{"type":"ping","a":1}', b"{}", b"1", b'{"type":"load"}'):
        with pytest.raises(msgspec.MsgspecError):
            messages.decode_request(data)


@settings(max_examples=30)
@given(st.lists(st.binary(max_size=300), max_size=10), st.integers(1, 40))
def test_frames_arrive_whole_however_they_are_cut(sent: list[bytes], cut: int) -> None:
    stream = b"".join(struct.pack("<I", len(s)) + s for s in sent)
    frames, got = Frames(), []
    for start in range(0, len(stream), cut):
        got += frames.feed(stream[start : start + cut])
    assert got == sent


def test_a_frame_through_a_pipe_that_closes_and_a_length_that_cannot_be() -> None:
    end, begin = os.pipe()
    write_frame(begin, b"hello")
    write_frame(begin, b"")
    assert read_frame(end) == b"hello"
    assert read_frame(end) == b""
    os.write(begin, b"\xff\xff\xff\xff")
    with pytest.raises(ClosedError, match=str(LIMIT)):
        read_frame(end)
    with pytest.raises(ClosedError, match=str(LIMIT)):
        Frames().feed(b"\xff\xff\xff\xff")
    os.write(begin, b"\x05\0\0\0ab")
    os.close(begin)
    with pytest.raises(ClosedError):
        read_frame(end)
    os.close(end)
    with pytest.raises(ClosedError):
        write_frame(end, b"x")
