"""Messages over a pair of pipes: four bytes of length, then as many bytes, which are a request's id and JSON.

An answer carries the id of its request. Nobody can guess the id, so what a candidate writes to the pipe is no answer.
"""

from __future__ import annotations

import os
import secrets
import struct

LIMIT = 16 << 20
"""Bytes of the longest message. Who announces a longer one is broken."""

_LENGTH = struct.Struct("<I")
_ID_BYTES = 16

HELLO = b"hello".ljust(_ID_BYTES)
"""The id of a worker's first message, which nobody asked for: it is ready."""


def new_id() -> bytes:
    """An id for a request."""
    return secrets.token_bytes(_ID_BYTES)


def opened(frame: bytes) -> tuple[bytes, bytes]:
    """The id of a frame, and the message."""
    return frame[:_ID_BYTES], frame[_ID_BYTES:]


class ClosedError(Exception):
    """The other end is gone, or what it sent is no message."""


def write_frame(descriptor: int, data: bytes) -> None:
    """Send one message whole. Raises ClosedError when nobody reads any more."""
    view = memoryview(_LENGTH.pack(len(data)) + data)
    try:
        while view:
            view = view[os.write(descriptor, view) :]
    except (BrokenPipeError, OSError) as error:
        raise ClosedError(f"the pipe is closed ({error.strerror})") from error


def read_frame(descriptor: int) -> bytes:
    """Wait for one message, in a worker. Raises ClosedError at the end of the pipe, or for an impossible length."""
    (length,) = _LENGTH.unpack(_read_exactly(descriptor, _LENGTH.size))
    if length > LIMIT:
        raise ClosedError(f"a message of {length} bytes was announced, but at most {LIMIT} are allowed")
    return _read_exactly(descriptor, length)


def _read_exactly(descriptor: int, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = os.read(descriptor, size - len(parts))
        if not part:
            raise ClosedError("the pipe is closed")
        parts += part
    return bytes(parts)


class Frames:
    """Cuts a stream of bytes into messages as the bytes arrive, for the bench, which waits for several things."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Add bytes, and return the messages that are now whole. Raises ClosedError for an impossible length."""
        self._bytes += data
        messages = []
        while len(self._bytes) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._bytes)
            if length > LIMIT:
                raise ClosedError(f"a message of {length} bytes was announced, but at most {LIMIT} are allowed")
            end = _LENGTH.size + length
            if len(self._bytes) < end:
                break
            messages.append(bytes(self._bytes[_LENGTH.size : end]))
            del self._bytes[:end]
        return messages
