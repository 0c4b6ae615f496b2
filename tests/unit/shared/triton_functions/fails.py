"""Fails as packages do that want a device."""


def f() -> None: ...


raise RuntimeError("no device")
