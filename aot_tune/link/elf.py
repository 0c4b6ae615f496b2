"""Facts read from ELF files, and archives of them whose bytes only depend on names and contents of the members."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from elftools.elf.constants import SH_FLAGS
from elftools.elf.elffile import ELFFile

from aot_tune.support.errors import ManifestError

# How many bytes before and after a relocation's place linking may change, if not (0, 4). By machine and type.
_PATCHED: dict[str, dict[int, tuple[int, int]]] = {
    "EM_X86_64": {
        **dict.fromkeys((1, 24), (0, 8)),  # 64, PC64
        **dict.fromkeys((9, 41, 42), (3, 4)),  # GOTPCREL, GOTPCRELX, REX_GOTPCRELX: the opcode may be rewritten
        43: (4, 4),  # CODE_4_GOTPCRELX
        **dict.fromkeys((19, 20), (4, 12)),  # TLSGD, TLSLD: the whole sequence may be rewritten
    },
    "EM_AARCH64": dict.fromkeys((257, 260), (0, 8)),  # ABS64, PREL64
}
_SHORTEST_ANCHOR = 8
_LDMXCSR = re.compile(rb"\x0f\xae[\x10-\x17\x50-\x57\x90-\x97]")
_OWN = ("$ORIGIN", "$ORIGIN/lib")
_ABSOLUTE = re.compile(r"/|\$(?:ORIGIN|\{ORIGIN\})(?:/|\Z)")
_START = 64
"""How many bytes of a start-up function are examined."""
_MAGIC = b"!<arch>\n"
_HEADER = 60


@dataclass(frozen=True)
class _Piece:
    """A section of an object as it must appear in a library. Linking does not change the `fixed` byte ranges."""

    name: str
    data: bytes
    fixed: tuple[tuple[int, int], ...]
    symbols: dict[str, int]
    code: bool


class SharedLibrary:
    """A parsed shared library."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._elf: Any = ELFFile(BytesIO(data))
        self._symbols = self._local_symbols()
        self._sections = [s for s in self._elf.iter_sections() if s["sh_flags"] & SH_FLAGS.SHF_ALLOC]
        self._bodies = {s.name: s.data() for s in self._sections if s["sh_type"] == "SHT_PROGBITS"}
        self._found: dict[tuple[bytes, tuple[tuple[int, int], ...], bool], bool] = {}

    @property
    def machine(self) -> str:
        """The machine that it is for, as ELF names it: EM_X86_64."""
        return str(self._elf["e_machine"])

    def exported(self) -> set[str]:
        """Symbols that other files can bind to."""
        table = self._elf.get_section_by_name(".dynsym")
        if table is None:
            return set()
        return {
            s.name
            for s in table.iter_symbols()
            if s["st_shndx"] != "SHN_UNDEF" and s["st_info"]["bind"] != "STB_LOCAL" and s.name
        }

    def dynamic(self, *tags: str) -> list[str]:
        """Values of string entries of the dynamic section: DT_NEEDED, DT_SONAME, DT_RPATH, DT_RUNPATH."""
        section = self._elf.get_section_by_name(".dynamic")
        names = {"DT_NEEDED": "needed", "DT_SONAME": "soname", "DT_RPATH": "rpath", "DT_RUNPATH": "runpath"}
        entries = [] if section is None else [t for t in section.iter_tags() if t.entry.d_tag in tags]
        return [str(getattr(t, names[t.entry.d_tag])) for t in entries]

    def missing_pieces(self, member: bytes) -> list[str]:
        """Names of the object's code and constant sections whose bytes are not in this library.

        Bytes that the linker fills in or may rewrite are not compared. All others must be equal. If the library still
        has a symbol table, they must be at the place of the object's symbols.
        """
        return [p.name for p in _pieces(member) if not self._holds(p)]

    def start_sets_arithmetic(self) -> bool:
        """Whether a function that runs at load time writes the control word of the floating-point unit.

        This is only for x86-64. It looks for `ldmxcsr` within a few instructions, as in the start-up code that
        compilers link for fast mathematics.
        """
        array = self._elf.get_section_by_name(".init_array")
        if array is None or self._elf["e_machine"] != "EM_X86_64":
            return False
        first, last = array["sh_addr"], array["sh_addr"] + array["sh_size"]
        starts = {int.from_bytes(array.data()[i : i + 8], "little") for i in range(0, array["sh_size"], 8)}
        for table in (s for s in self._elf.iter_sections() if s["sh_type"] == "SHT_RELA"):
            starts |= {r["r_addend"] for r in table.iter_relocations() if first <= r["r_offset"] < last}
        return any(_LDMXCSR.search(self._code_at(start)) for start in starts)

    def lacks_frames(self) -> bool:
        """Whether it has code that exceptions pass through, and no table by which they find who catches them."""
        frames, table = (self._elf.get_section_by_name(name) for name in (".eh_frame", ".eh_frame_hdr"))
        return frames is not None and table is None

    def _code_at(self, address: int) -> bytes:
        """The first bytes of the function at an address."""
        for section in self._sections:
            offset = address - section["sh_addr"]
            if section["sh_flags"] & SH_FLAGS.SHF_EXECINSTR and 0 <= offset < section["sh_size"]:
                code: bytes = self._bodies.get(section.name, b"")[offset : offset + _START]
                return code
        return b""

    def _local_symbols(self) -> dict[str, tuple[str, int]]:
        table = self._elf.get_section_by_name(".symtab")
        if table is None:
            return {}
        sections = list(self._elf.iter_sections())
        symbols = {}
        for symbol in table.iter_symbols():
            index = symbol["st_shndx"]
            if symbol.name and isinstance(index, int) and index < len(sections):
                symbols[symbol.name] = (sections[index].name, symbol["st_value"] - sections[index]["sh_addr"])
        return symbols

    def _holds(self, piece: _Piece) -> bool:
        for name, offset in piece.symbols.items():
            if name in self._symbols:
                section, address = self._symbols[name]
                return _equal(piece, self._bodies.get(section, b""), address - offset)
        same = piece.data, piece.fixed, piece.code  # many objects have the same constants and helpers
        if same not in self._found:
            kind = SH_FLAGS.SHF_EXECINSTR if piece.code else 0
            bodies = [
                self._bodies[s.name]
                for s in self._sections
                if s.name in self._bodies and s["sh_flags"] & SH_FLAGS.SHF_EXECINSTR == kind
            ]
            self._found[same] = any(_search(piece, body) for body in bodies)
        return self._found[same]


def own_folders_first(data: bytes, build: Sequence[str]) -> bytes:
    """The same library, whose run path begins with its own folder and `lib` below that.

    What flags of the environment add stays behind these: a compiler's own libraries may be nowhere else. Folders below
    `build` and relative ones are left out.
    """
    elf: Any = ELFFile(BytesIO(data))
    dynamic, names = elf.get_section_by_name(".dynamic"), elf.get_section_by_name(".dynstr")
    changed = bytearray(data)
    for tag in dynamic.iter_tags() if dynamic is not None else ():
        if tag.entry.d_tag in ("DT_RPATH", "DT_RUNPATH"):
            start, old = names["sh_offset"] + tag["d_val"], names.get_string(tag["d_val"])
            below = tuple(f"{folder}/" for folder in build)
            left = [f for f in dict.fromkeys(old.split(":")) if _ABSOLUTE.match(f) and not f"{f}/".startswith(below)]
            new = ":".join(sorted(left, key=lambda f: f not in _OWN)).encode()
            changed[start : start + len(old.encode())] = new.ljust(len(old.encode()), b"\0")
    return bytes(changed)


def _pieces(member: bytes) -> list[_Piece]:
    elf: Any = ELFFile(BytesIO(member))
    patched = _PATCHED.get(elf["e_machine"])
    if patched is None:
        raise ManifestError(f"objects for the machine {elf['e_machine']} cannot be compared with a library")
    relocations = {s["sh_info"]: s for s in elf.iter_sections() if s["sh_type"] in ("SHT_RELA", "SHT_REL")}
    symbols: dict[int, dict[str, int]] = {}
    table = elf.get_section_by_name(".symtab")
    for symbol in table.iter_symbols() if table is not None else ():
        if symbol["st_info"]["bind"] == "STB_GLOBAL" and isinstance(symbol["st_shndx"], int):
            symbols.setdefault(symbol["st_shndx"], {})[symbol.name] = symbol["st_value"]
    pieces = []
    for index, section in enumerate(elf.iter_sections()):
        flags = section["sh_flags"]
        wanted = flags & SH_FLAGS.SHF_ALLOC and not flags & SH_FLAGS.SHF_WRITE
        if not wanted or section["sh_type"] != "SHT_PROGBITS" or not section["sh_size"]:
            continue
        if section.name.startswith((".eh_frame", ".note")) or flags & SH_FLAGS.SHF_STRINGS:
            continue  # the linker rewrites or shares these
        data, code = section.data(), bool(flags & SH_FLAGS.SHF_EXECINSTR)
        if flags & SH_FLAGS.SHF_MERGE and section["sh_entsize"]:
            size = section["sh_entsize"]
            entries = [data[i : i + size] for i in range(0, len(data), size)]
            pieces += [_Piece(section.name, e, ((0, size),), {}, code) for e in dict.fromkeys(entries)]
        else:
            fixed = _fixed_ranges(len(data), relocations.get(index), patched)
            pieces.append(_Piece(section.name, data, fixed, symbols.get(index, {}), code))
    return pieces


def _fixed_ranges(size: int, relocations: Any, patched: dict[int, tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    changed = []
    for relocation in relocations.iter_relocations() if relocations is not None else ():
        before, after = patched.get(relocation["r_info_type"], (0, 4))
        offset = relocation["r_offset"]
        changed.append((max(offset - before, 0), min(offset + after, size)))
    ranges, start = [], 0
    for low, high in sorted(changed):
        if low > start:
            ranges.append((start, low))
        start = max(start, high)
    if start < size:
        ranges.append((start, size))
    return tuple(ranges)


def _equal(piece: _Piece, body: bytes, start: int) -> bool:
    if start < 0 or start + len(piece.data) > len(body):
        return False
    return all(piece.data[low:high] == body[start + low : start + high] for low, high in piece.fixed)


def _search(piece: _Piece, body: bytes) -> bool:
    if not piece.fixed:
        return True  # it holds only addresses
    low, high = max(piece.fixed, key=lambda r: r[1] - r[0])
    if high - low < min(_SHORTEST_ANCHOR, len(piece.data)):
        return any(_equal(piece, body, start) for start in range(len(body) - len(piece.data) + 1))
    anchor = piece.data[low:high]
    start = body.find(anchor)
    while start >= 0:
        if _equal(piece, body, start - low):
            return True
        start = body.find(anchor, start + 1)
    return False


@dataclass(frozen=True)
class Member:
    """One object of an archive. The linker finds it by its `symbols`. It `uses` those of others."""

    name: str
    data: bytes
    symbols: tuple[str, ...] = ()
    uses: frozenset[str] = frozenset()


def write_archive(members: Sequence[Member]) -> bytes:
    """The archive in GNU format with a symbol index. Times, owners and modes are constants."""
    long_names = b"".join(m.name.encode() + b"/\n" for m in members)
    name_offsets, offset = [], 0
    for member in members:
        name_offsets.append(offset)
        offset += len(member.name.encode()) + 2
    symbols = [(s, i) for i, m in enumerate(members) for s in m.symbols]
    index_size = 4 + 4 * len(symbols) + sum(len(s) + 1 for s, _ in symbols)
    position = len(_MAGIC) + _HEADER + _even(index_size) + _HEADER + _even(len(long_names))
    positions = []
    for member in members:
        positions.append(position)
        position += _HEADER + _even(len(member.data))
    index = len(symbols).to_bytes(4, "big") + b"".join(positions[i].to_bytes(4, "big") for _, i in symbols)
    index += b"".join(s.encode() + b"\0" for s, _ in symbols)
    parts = [_MAGIC, _entry("/", index), _entry("//", long_names)]
    parts += [_entry(f"/{o}", m.data) for o, m in zip(name_offsets, members, strict=True)]
    return b"".join(parts)


def read_archive(data: bytes) -> list[Member]:
    """The members of an archive that `write_archive` wrote. Raises ManifestError when the bytes are no such archive."""
    if not data.startswith(_MAGIC):
        raise ManifestError("the archive of variants does not begin like an archive")
    names, members, position = b"", [], len(_MAGIC)
    while position < len(data):
        header = data[position : position + _HEADER]
        size = header[48:58].decode("ascii", "replace").strip()
        if len(header) < _HEADER or header[58:] != b"`\n" or not size.isdigit():
            raise ManifestError(f"the archive of variants is damaged at byte {position}")
        body = data[position + _HEADER : position + _HEADER + int(size)]
        label = header[:16].decode("ascii", "replace").strip()
        if label == "//":
            names = body
        elif label != "/":
            start = int(label[1:])
            members.append(Member(names[start : names.index(b"/\n", start)].decode(), body))
        position += _HEADER + _even(int(size))
    return members


def _even(size: int) -> int:
    return size + size % 2


def _entry(label: str, data: bytes) -> bytes:
    header = f"{label:<16}{0:<12}{0:<6}{0:<6}{644:<8}{len(data):<10}`\n".encode()
    return header + data + b"\n" * (len(data) % 2)
