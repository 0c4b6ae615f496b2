#!/usr/bin/env bash
# What a machine with two GPUs does with a commit: card.sh in two lanes, each with one GPU and half of the cores, then
# the steps that need a quiet machine, and those that need both GPUs.
#
#   benchmarks/cards.sh start FOLDER         start; the lanes continue after the command has ended
#   benchmarks/cards.sh wait FOLDER SECONDS  wait until all has ended, at most this long; status 0 if it has
#
# FIRST and SECOND are the steps of the lanes. Their defaults are tune, again, bench and triton; and repeat, isolation and
# tests. Results go to FOLDER/first, FOLDER/second and FOLDER/both. Those of `first` are the ones that card.sh gives for
# a commit.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# The cores that this may use: half of them, the other half, and all. They need not be the machine's first cores.
split='
import os
cores = sorted(os.sched_getaffinity(0))
half = len(cores) // 2
for part in (cores[:half] or cores, cores[half:], cores):
    print(",".join(map(str, part)))
'

lane() { # lane NAME GPU CORES STEP ...
  local name=$1 gpu=$2 cores=$3
  shift 3
  WORK=/tmp/aot_tune_cards/$name CUDA_VISIBLE_DEVICES=$gpu taskset -c "$cores" "$here/card.sh" "$out/$name" "$@"
}

lanes() {
  lane first 0 "$near" ${FIRST:-tune again bench triton} &
  lane second 1 "$far" ${SECOND:-repeat isolation tests} &
  wait
  lane first 0 "$near" calls
  # the first lane has the objects of all problems
  AOT_TUNE_CACHE_DIR=/tmp/aot_tune_cards/first/cache lane both 0,1 "$all" devices
  touch "$out/ended"
}

case ${1:-} in
  start)
    out=$(mkdir -p "$2" && cd "$2" && pwd)
    rm -f "$out/ended"
    { read -r near && read -r far && read -r all; } < <(python -c "$split") || exit 1
    export -f lane lanes
    export here out near far all
    setsid nohup bash -c lanes >"$out/log.txt" 2>&1 &
    ;;
  wait)
    out=$2
    for ((second = 0; second < $3; second += 2)); do
      [ ! -e "$out/ended" ] || break
      sleep 2
    done
    tail -n 40 "$out"/*/summary.txt
    [ -e "$out/ended" ]
    ;;
  *)
    sed -n '2,10s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac
