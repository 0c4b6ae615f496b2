"""What Triton's own JIT makes of a call, for tests to compare with: `python triton_jit.py <root>`, JSON lines.

It goes the way of `JITFunction.run` up to the launch: binder, specialisation, `triton.compile`.
"""

from __future__ import annotations

import hashlib
import io
import json
import sys

from elftools.elf.elffile import ELFFile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile, make_backend  # noqa: A004
from triton.runtime.jit import create_function_from_signature
from triton.tools.tensor_descriptor import TensorDescriptor

from aot_tune.triton.installed import load


class Array:
    """A tensor as the binder looks at it."""

    def __init__(self, dtype: str, address: int, size: int) -> None:
        self.dtype, self._address, self._size = dtype, address, size

    def data_ptr(self) -> int:
        return self._address

    def ptr_range(self) -> int:
        return self._size


class Element(str):
    """An element type that knows its size, as those of frameworks."""

    itemsize, is_floating_point = 2, True


def value_of(given):
    if not isinstance(given, dict):
        return given
    if "number" in given:
        return float(given["number"])
    if "block" in given:
        base = Array(Element(given["dtype"]), 256, 1 << 20)
        return TensorDescriptor(base, given["shape"], given["strides"], given["block"])
    return Array(given["dtype"], given["address"], given["size"])


def bind(asked):
    function = load(asked["function"], sys.argv[1:])
    while not hasattr(function, "params"):
        function = function.fn
    target = GPUTarget(*asked["target"])
    backend = make_backend(target)
    binder = create_function_from_signature(function.signature, function.params, backend)
    arguments = {name: value_of(given) for name, given in asked["arguments"].items()}
    bound, specialization, options = binder(**arguments, **asked.get("options", {}))
    packed = function._pack_args(backend, options, bound, specialization, options)
    return function, target, packed


def answer(asked):
    function, target, (options, signature, constexprs, attributes) = bind(asked)
    names = [p.name for p in function.params]
    marks = {names[path[0]]: sorted(mark for mark, _ in found) for path, found in attributes.items() if found}
    found = {
        "signature": signature,
        "constexprs": {names[path[0]]: str(value) for path, value in constexprs.items()},
        "marks": marks,
    }
    if asked.get("compile"):
        made = compile(ASTSource(function, signature, constexprs, attributes), target, options.__dict__)
        found |= {"code": sections(made.kernel), "shared": made.metadata.shared, "warps": made.metadata.num_warps}
    return found


def sections(image: bytes) -> dict[str, str]:
    """Digests of what a GPU executes and reads: machine code and constants."""
    wanted = (".text", ".nv.constant", ".nv.shared", ".rodata")
    found = {}
    for section in ELFFile(io.BytesIO(image)).iter_sections():
        if section.name.startswith(wanted) and section.data_size:
            found[section.name] = hashlib.sha256(section.data()).hexdigest()
    return found


def main() -> None:
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
