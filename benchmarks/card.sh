#!/usr/bin/env bash
# What a GPU machine does with a commit, step by step: tune and record, build again, test, measure.
#
#   benchmarks/card.sh FOLDER [tune|sanitize|installed|again|tests|packages|bench|triton|models|unseen|formats|launchers ...]
#
# By default, `tune again tests bench triton`. `sanitize` runs what is kept under sanitizers, and records it with their
# verdicts; what they report is in its log, and left out. `installed` takes the place of `tune`: it installs the wheel that WHEEL
# names, which was built elsewhere. The tests use the library of either.
#
# Results go to FOLDER: record.tar.gz (the database to commit below tuning/) and report.json.gz as soon as all is tuned, a
# log of each step, tables and figures. summary.txt has a line for each step with its seconds and status. WORK (default
# /tmp/aot_tune_card) keeps what later steps need, so that steps can be run in several commands. The first Python on PATH
# must have torch, scikit-build-core and the other requirements of pyproject.toml, because nothing is downloaded.
# SECONDS_OF_BENCH, COMPILE_PROBLEMS and OPERATORS shorten `bench`. SECONDS_OF_UNSEEN limits `unseen`, and
# OPTIONS_OF_UNSEEN go to it, such as `--variants --seed 7`. SECONDS_OF_FORMATS and OPTIONS_OF_FORMATS are those of
# `formats`.
set -uo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
out=$(mkdir -p "$1" && cd "$1" && pwd)
shift
work=${WORK:-/tmp/aot_tune_card}
package=$work/tuned/installed
mkdir -p "$work"
cd "$root" || exit 1
export AOT_TUNE_CACHE_DIR=${AOT_TUNE_CACHE_DIR:-$work/cache}
targets=${AOT_TUNE_TARGETS:-cuda}
xla=$(python -c 'from importlib.util import find_spec; print(int(find_spec("jax") is not None))')

wheel() { # wheel FOLDER [OPTION=VALUE ...]: build into FOLDER and install below FOLDER/installed
  local folder=$1 defines=()
  shift
  for given in "$@" AOT_TUNE_XLA_FFI="$xla"; do defines+=(-C "cmake.define.$given"); done
  rm -rf "$folder" && mkdir -p "$folder"
  python -m pip wheel -v --no-index --no-deps --no-build-isolation -w "$folder" \
    -C "cmake.define.AOT_TUNE_TARGETS=$targets" "${defines[@]}" . &&
    python -m pip install -q --no-index --no-deps --target "$folder/installed" "$folder"/*.whl
}

record() { # export what was measured, even if the link failed
  local report=$package/aot_tune/share/aot_tune/ops/report.json
  [ ! -e "$report" ] || gzip -c "$report" >"$out/report.json.gz"
  rm -rf "$work/record"
  PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH} python -m aot_tune records export "$work/record" && tar -C "$work" -czf "$out/record.tar.gz" record
}

gpu_tests() { # gpu_tests OPTION ...: options of pytest; with a copy of the cache, as some tests measure beside others
  rm -rf "$work/tests" && mkdir -m 700 "$work/tests"
  for part in objects measurements; do
    [ ! -d "$AOT_TUNE_CACHE_DIR/$part" ] || cp -al "$AOT_TUNE_CACHE_DIR/$part" "$work/tests/$part"
  done
  export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH} AOT_TUNE_GPU_TEST_CACHE=$work/tests
  [ ! -d "$package" ] || export AOT_TUNE_GPU_TEST_LIBRARY=$package
  [ ! -d "$work/record" ] || export AOT_TUNE_GPU_TEST_DATABASE=$work/record # not to measure again what tune has measured
  export AOT_TUNE_GPU_TEST_BUDGET=${AOT_TUNE_GPU_TEST_BUDGET:-300} # builds wait for each other
  python -m pytest -p no:cacheprovider "$@"
}

example() { # example NAME: build the operators of an example, with the package of this tree
  local folder=$work/$1
  mkdir -p "$folder" && printf '%s\n' 'cmake_minimum_required(VERSION 3.25)' 'project(card LANGUAGES CXX)' \
    "include(\"$root/cmake/aot_tune_add_library.cmake\")" \
    "aot_tune_add_library(card TEMPLATES \"$root/examples/$1/templates\" MODULE ops)" >"$folder/CMakeLists.txt"
  AOT_TUNE_TARGETS=cuda AOT_TUNE_EFFORT=quick cmake -G Ninja -S "$folder" -B "$folder/build" \
    -DPython_EXECUTABLE="$(command -v python)" && cmake --build "$folder/build"
}

stamp() { # prefix each line with the seconds since the start
  python -u -c '
import sys, time
began = time.monotonic()
for line in sys.stdin:
    sys.stdout.write(f"{time.monotonic() - began:7.1f} {line}")
'
}

step() {
  case $1 in
    tune)
      local status=0
      wheel "$work/tuned" AOT_TUNE_MODE="${MODE:-auto}" || status=1
      record || status=1
      return $status
      ;;
    sanitize)
      wheel "$work/sanitized" AOT_TUNE_MODE=auto AOT_TUNE_SANITIZE=winners AOT_TUNE_NO_SURVIVOR=leave-out && record
      ;;
    installed) python -m pip install -q --no-index --no-deps --target "$package" "$WHEEL" ;;
    again) wheel "$work/again" AOT_TUNE_MODE=auto ;;
    tests) # functions of packages are a separate step
      (gpu_tests tests/gpu --ignore=tests/gpu/test_packages.py -v --durations=20 -n 3 --dist loadscope)
      ;;
    packages) (gpu_tests tests/gpu/test_packages.py -v) ;;
    bench)
      PYTHONPATH=$package${PYTHONPATH:+:$PYTHONPATH} python benchmarks/cuda.py --seconds "${SECONDS_OF_BENCH:-480}" \
        --compile-problems "${COMPILE_PROBLEMS:-40}" ${OPERATORS:+--operators "$OPERATORS"} \
        --json "$out/cuda.json" --markdown "$out/cuda.md"
      ;;
    triton) # without the example, attention is measured anyway
      local status=0
      [ -d "$package/triton_package" ] ||
        PYTHONPATH=$package${PYTHONPATH:+:$PYTHONPATH} python -m pip install -q --no-index --no-deps --no-build-isolation --target "$package" examples/triton_package || status=1
      PYTHONPATH=$package${PYTHONPATH:+:$PYTHONPATH} python benchmarks/triton_kernels.py --json "$out/triton.json" --markdown "$out/triton.md" || status=1
      return $status
      ;;
    models)
      local status=0 ways=(eager max-autotune "patched, graphs")
      for way in max-autotune patched "patched, compile"; do ways+=("$way, captured"); done
      for model in llama bert; do
        PYTHONPATH=$package${PYTHONPATH:+:$PYTHONPATH} python benchmarks/models.py --steady --models $model --ways "${ways[@]}" \
          --json "$out/$model.json" || status=1
      done
      return $status
      ;;
    unseen)
      local status=0 seconds=${SECONDS_OF_UNSEEN:-200} options=(${OPTIONS_OF_UNSEEN:-})
      PYTHONPATH=$package${PYTHONPATH:+:$PYTHONPATH} python benchmarks/unseen.py --dtypes bf16 f16 --widths any \
        --seconds $((seconds * 5 / 6)) --json "$out/unseen.json" "${options[@]}" || status=1
      PYTHONPATH=$package${PYTHONPATH:+:$PYTHONPATH} python benchmarks/unseen.py --dtypes f32 --operators gemm batched_gemm \
        --forms plain tf32 --seconds $((seconds / 6)) --json "$out/unseen-f32.json" "${options[@]}" || status=1
      return $status
      ;;
    formats)
      local options=(${OPTIONS_OF_FORMATS:-})
      PYTHONPATH=$package${PYTHONPATH:+:$PYTHONPATH} python benchmarks/formats.py --seconds "${SECONDS_OF_FORMATS:-200}" \
        --json "$out/formats.json" "${options[@]}" | tee "$out/formats.md"
      ;;
    launchers) # kernels of others by the library and by their own launchers; PYTHONPATH names the packages
      local status=0 name
      export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
      for name in from_packages cuda_packages; do example $name || status=1; done
      python benchmarks/packages.py triton "$work/from_packages/build" --json "$out/from_packages.json" || status=1
      python benchmarks/packages.py cuda "$work/cuda_packages/build" --json "$out/cuda_packages.json" || status=1
      return $status
      ;;
    *) echo "no step $1" && return 2 ;;
  esac
}

steps=("$@")
[ ${#steps[@]} -gt 0 ] || steps=(tune again tests bench triton)
failed=0
for one in "${steps[@]}"; do
  began=$(date +%s)
  step "$one" 2>&1 | stamp >"$out/log-$one.txt"
  status=${PIPESTATUS[0]}
  [ $status -eq 0 ] || failed=1
  echo "$one: $(($(date +%s) - began)) s, status $status" | tee -a "$out/summary.txt"
  tail -n 3 "$out/log-$one.txt"
done
exit $failed
