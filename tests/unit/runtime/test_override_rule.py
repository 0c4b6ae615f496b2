"""Lines of AOT_TUNE_OVERRIDE's file, read under sanitizers: what calls they are for, and what is said of bad ones."""

import random
import subprocess
from collections.abc import Callable, Sequence

import linked
import pytest

from aot_tune.support.installed_paths import RUNTIME

PROGRAM = """
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include "override.h"

using namespace aot_tune;

namespace {
constexpr TensorInfo kTensors[] = {{"a", "[M, K]", "f32", {2, 32, "float32"}, 2, 0, false, false},
                                   {"bias", "[N]", "f32", {2, 32, "float32"}, 1, 0, false, true},
                                   {"out", "[M, N]", "f32", {2, 32, "float32"}, 2, 0, true, false}};
constexpr const char* kDims[] = {"M", "N"};
constexpr const char* kNames[] = {"f32", "bf16", "f16"};
constexpr const char* kActivations[] = {"none", "relu", "gelu"};
constexpr VariableInfo kVariables[] = {{{"T", kNames, 3}, nullptr}};
constexpr AttributeInfo kAttributes[] = {{"activation", kActivations, 3}};
constexpr OperatorInfo kOperator = {"gemm", kTensors, 3,          nullptr, 0, kAttributes, 1,
                                    kDims,  2,        kVariables, 1,       0, 0,           nullptr};
constexpr OperatorInfo kOther = {"softmax", kTensors, 1, nullptr, 0, nullptr, 0, nullptr, 0, nullptr, 0, 0, 0, nullptr};
const VariantInfo kVariants[] = {{"plain", "cpu", "plain", "", nullptr, 1, 0},
                                 {"packed_1", "cpu", "packed", "", nullptr, 1, 0},
                                 {"packed_2", "cpu", "packed", "", nullptr, 1, 0}};
const FactsInfo kGemm = {&kOperator, kVariants, 3}, kSoftmax = {&kOther, kVariants, 1};
const FactsInfo* const kOperators[] = {&kGemm, &kSoftmax};
}  // namespace

namespace aot_tune {
const LibraryInfo library_info = {"ops", "", kOperators, 2};
}

// What the file's lines are, each on a line.
int main(int, char** given) {
  std::ifstream file(given[1], std::ios::binary);
  std::string line;
  while (std::getline(file, line)) {
    std::string exact(line);  // so that a byte behind it is an error
    char* copy = static_cast<char*>(std::malloc(exact.size() + (exact.empty() ? 1 : 0)));
    std::memcpy(copy, exact.data(), exact.size());
    char reason[700] = "";
    Text why(reason, sizeof reason);
    Rule rule{};
    if (!read_rule(copy, exact.size(), &rule, &why)) {
      std::printf("bad: %s\\n", reason);
    } else if (rule.info == nullptr) {
      std::puts("nothing");
    } else {
      std::printf("%s:", rule.info->op->name);
      const int64_t most = INT64_MAX;
      for (int i = 0; i < rule.info->count(); ++i) {
        const Span& span = rule.spans[i];
        std::printf(" %" PRId64 "..", span.low);
        if (span.high < most) std::printf("%" PRId64, span.high);
      }
      std::printf(" -> %.*s | %.*s\\n", static_cast<int>(rule.name.length), rule.name.text,
                  static_cast<int>(rule.text.length), rule.text.text);
      std::free(const_cast<Span*>(rule.spans));
    }
    std::free(copy);
  }
}
"""

Read = Callable[[Sequence[str]], list[str]]


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Read:
    """What lines are, as a program says that reads them one by one."""
    folder = tmp_path_factory.mktemp("rules")
    (folder / "rules.cpp").write_text(PROGRAM)
    objects = linked.sanitized_runtime(folder / "runtime")
    flags = [*linked.SANITIZE, "-std=c++17", "-g", f"-I{RUNTIME}", f"-I{RUNTIME / 'include'}", "-pthread"]
    subprocess.run(["g++", *flags, str(folder / "rules.cpp"), *objects, "-o", str(folder / "rules")], check=True)

    def ask(lines: Sequence[str]) -> list[str]:
        file = folder / "file"
        file.write_bytes("".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape"))
        done = subprocess.run([str(folder / "rules"), str(file)], capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode(errors="replace").splitlines()

    return ask


# M, N, T, activation, a, bias, out
ANY = {"M": "0..", "N": "0..", "T": "0..", "activation": "0..", "a": "1..1", "bias": "0..1", "out": "1..1"}


SPANS: list[tuple[str, dict[str, str]]] = [
    ("", {}),
    ("M=16", {"M": "16..16"}),
    ("M<=16", {"M": "0..16"}),
    ("M<16", {"M": "0..15"}),
    ("M>=16", {"M": "16.."}),
    ("M>16", {"M": "17.."}),
    ("M>=0", {}),
    ("16<=M<=64", {"M": "16..64"}),
    ("16<M<64", {"M": "17..63"}),
    ("16<=M", {"M": "16.."}),
    ("16 <= M <= 64 , N = 4096", {"M": "16..64", "N": "4096..4096"}),
    ("M<=64, M>=16,M<=32", {"M": "16..32"}),
    ("M<9223372036854775807", {"M": "0..9223372036854775806"}),
    ("T=bf16", {"T": "1..1"}),
    ("activation=gelu,T=f32", {"activation": "2..2", "T": "0..0"}),
    ("bias", {"bias": "1..1"}),
    ("! bias, N>1", {"bias": "0..0", "N": "2.."}),
]


def test_what_a_rule_is_for(read: Read) -> None:
    said = read([f"gemm: {conditions} -> packed_1" for conditions, _ in SPANS])
    for line, (_, spans) in zip(said, SPANS, strict=True):
        wanted = " ".join((ANY | spans).values())
        assert line.partition(" | ")[0] == f"gemm: {wanted} -> packed_1"


def test_comments_spaces_and_names(read: Read) -> None:
    every = " ".join(ANY.values())
    assert read(
        [
            "",
            "  # all of it: M -> ",
            "gemm:->plain",
            "\t ops.gemm : -> packed  # of both, the first that takes the call \r",
            "other.gemm: X=3, whatever -> nothing that is known here",
            "softmax: -> plain",
        ]
    ) == [
        "nothing",
        "nothing",
        f"gemm: {every} -> plain | gemm:->plain",
        f"gemm: {every} -> packed | ops.gemm : -> packed",
        "nothing",
        "softmax: 1..1 -> plain | softmax: -> plain",
    ]


FORM = "is no rule; wanted 'OPERATOR: CONDITION, ... -> VARIANT', such as 'gemm: M<=16, N=4096 -> VARIANT'"
EMPTY = "no call has a '%s' of which all this holds; change its conditions, or take the line out"


BAD = [
    ("gemn: -> plain", "library ops has no operator 'gemn'; did you mean 'gemm'?"),
    ("norm: -> plain", "library ops has no operator 'norm'; there are gemm, softmax (a rule for another library "),
    ("ops.norm: -> plain", "library ops has no operator 'norm'"),
    ("gemm: -> packed_3", "'packed_3' is no variant and no kernel of gemm here; did you mean 'packed_1'?"),
    ("gemm: -> x", "'x' is no variant and no kernel of gemm here; there are plain, packed, packed_1, packed_2 (the "),
    ("gemm: -> " + "x" * 99, f"'{'x' * 40}' is no variant"),
    ("gemm: X=1 -> plain", "gemm has no dim, dtype, attribute or optional tensor 'X'; there are M, N, T, activation, "),
    ("gemm: activatoin=relu -> plain", "'activatoin'; did you mean 'activation'?"),
    ("softmax: M=1 -> plain", "softmax has no dim, dtype, attribute or optional tensor 'M'; there is none"),
    ("gemm: M<=16, M>=32 -> plain", EMPTY % "M"),
    ("gemm: 16<=M<=8 -> plain", EMPTY % "M"),
    ("gemm: M<0 -> plain", EMPTY % "M"),
    ("gemm: M>9223372036854775807 -> plain", EMPTY % "M"),
    ("gemm: 9223372036854775807<M -> plain", EMPTY % "M"),
    ("gemm: T=f32, T=f16 -> plain", EMPTY % "T"),
    ("gemm: bias, !bias -> plain", EMPTY % "bias"),
    ("gemm: M=9223372036854775808 -> plain", "wanted a whole number below 2^63 in place of '92233"),
    ("gemm: M=4k -> plain", "wanted a whole number, such as 4096, in place of '4k -> plain'"),
    ("gemm: M=-1 -> plain", "wanted a whole number, such as 4096, in place of '-1 -> plain'"),
    ("gemm: M==1 -> plain", "wanted a whole number, such as 4096, in place of '=1 -> plain'"),
    ("gemm: M<= -> plain", "wanted a whole number, such as 4096, in place of '-> plain'"),
    ("gemm: 16<=M<=N -> plain", "wanted a whole number, such as 4096, in place of 'N -> plain'"),
    ("gemm: 16>=M -> plain", "wanted '<=' or '<' behind a number that stands first, as in '16<=M<=64'"),
    ("gemm: 16 -> plain", "wanted '<=' or '<' behind a number that stands first"),
    ("gemm: 16<=M>=8 -> plain", "wanted '<=' or '<' behind 'M', as in '16<=M<=64'"),
    ("gemm: 1<=bias -> plain", "'bias' is no dim, and cannot be within a range; write 'bias'"),
    ("gemm: 1<=T<=2 -> plain", "'T' is no dim, and cannot be within a range; write 'T=CHOICE'"),
    ("gemm: M=1 N=2 -> plain", "wanted ',' or '->' before 'N=2 -> plain'"),
    ("gemm: M=1, -> plain", "wanted a condition or '->' in place of '-> plain'"),
    ("gemm: M=1", "wanted ',' or '->' at the end"),
    ("gemm: M=1 # -> plain", "wanted ',' or '->' at the end"),
    ("gemm:", "wanted a condition or '->' in place of ''"),
    ("gemm: M -> plain", "'M' is no tensor; write 'M<=4096'"),
    ("gemm: !M=3 -> plain", "'M' is no tensor; write 'M<=4096'"),
    ("gemm: T -> plain", "'T' is no tensor; write 'T=CHOICE'"),
    ("gemm: T<=f32 -> plain", "'T' has choices by name, and can only be asked by '=': T=f32"),
    ("gemm: T=f64 -> plain", "'T' cannot be 'f64'; there are f32, bf16, f16"),
    ("gemm: activation=rely -> plain", "'activation' cannot be 'rely'; did you mean 'relu'?"),
    ("gemm: activation= -> plain", "'activation' cannot be ''; there are none, relu, gelu"),
    ("gemm: bias=1 -> plain", "'bias' is a tensor, and is there or not; write 'bias', or '!bias' where it is not"),
    ("gemm: a -> plain", "every call has the tensor 'a'; leave the condition out"),
    ("gemm: ->", "wanted the name of one variant or kernel behind '->', and nothing else; it is ''"),
    ("gemm: -> plain packed", "wanted the name of one variant or kernel behind '->', and nothing else; it is 'plain p"),
    ("gemm: -> packed*", "and nothing else; it is 'packed*'"),
    ("gemm M=1 -> plain", f"'gemm M=1 -> plain' {FORM}"),
    ("M<=16 -> plain", FORM),
    (": -> plain", FORM),
    ("ops.: -> plain", FORM),
    (".gemm: -> plain", FORM),
    ('{"operator": "gemm"}', FORM),
    ("gëmm: -> plain", FORM),
]


def test_bad_lines(read: Read) -> None:
    for found, (_, said) in zip(read([line for line, _ in BAD]), BAD, strict=True):
        assert found.startswith("bad: ")
        assert said in found


def test_no_line_does_harm(read: Read) -> None:
    """Neither parts of rules in any order, nor any bytes."""
    draw = random.Random("rules")
    parts = ["gemm", "softmax", "ops", ".", ":", "M", "N", "T", "bias", "!", "=", "<=", "<", ">", ">=", ",", "->"]
    parts += [
        "16",
        "f32",
        "plain",
        " ",
        "#",
        "\t",
        "9" * 19,
        "9" * 99,
        "a" * 80,
        "\x00",
        "ü",
        "\udcff",
        "activation",
        "packed_1",
    ]
    lines = ["".join(draw.choices(parts, k=draw.randrange(1, 14))) for _ in range(4000)]
    lines += ["gemm:" + "".join(draw.choices(parts, k=draw.randrange(1, 9))) + "->plain" for _ in range(4000)]
    said = read(lines)
    assert len(said) == len(lines)
    assert sum(not s.startswith("bad: ") for s in said) > 60
