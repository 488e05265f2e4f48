#!/usr/bin/env bash
# All that only a GPU can show, in one run: the kernel tests on it, the device's sanitizers, kernel rates beside what the device does at best, PyTorch
# on the same shapes, tokens a second, the field report's load, a kill -9. Prints Markdown to paste into docs/gpu.md, and keeps it under the build folder.
#
# usage: tests/bench/gpu.sh [--only SECTION,...] [--skip SECTION,...] [--build FOLDER] [--device N] [--smoke] [--list]
#   sections, in order: tests sanitizer kernels torch tokens load kill
#   --build FOLDER   default build/release, which is built first where it lacks the tests' programs
#   --device N       as the driver counts (default 0)
#   --smoke          without a GPU: each section in a short form on the emulated device or the CPU; proves that this script works, prints no figures
#   HOLDFAST_SMOLLM2=FILE; without it the model is fetched, or left out with the reason
# Each section is bounded (SECTION_MINUTES, default 15); the whole takes about half an hour on a large card, most of it the sanitizers.
# exit: 0 all that ran is well; 1 a section failed; 64 a flag; 69 nothing to run on (no driver, no device, no toolkit, no build), with the reason
set -uo pipefail
cd "$(dirname "$0")/../.."
. deploy/packages.sh
. deploy/models.sh

sections=(tests sanitizer kernels torch tokens load kill)
build=build/release only='' skip='' device=0 smoke=
usage() { printf 'gpu.sh: %s\nsections: %s\n' "$1" "${sections[*]}" >&2; exit 64; }
while [ $# -gt 0 ]; do
  case $1 in
    --only | --skip | --build | --device)
      [ $# -ge 2 ] || usage "$1 needs a value"
      declare "${1#--}=$2"
      shift
      ;;
    --smoke) smoke=1 ;;
    --list) printf '%s\n' "${sections[@]}"; exit 0 ;;
    -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
    *) usage "unknown: $1" ;;
  esac
  shift
done
for name in ${only//,/ } ${skip//,/ }; do [[ " ${sections[*]} " == *" $name "* ]] || usage "no section is called '$name'"; done
[[ $device =~ ^[0-9]+$ ]] || usage "--device $device is no number"
wants() { { [ -z "$only" ] || [[ ",$only," == *",$1,"* ]]; } && [[ ",$skip," != *",$1,"* ]]; }
chosen=0
for name in "${sections[@]}"; do ! wants "$name" || chosen=1; done
[ $chosen = 1 ] || usage "--only $only --skip $skip leaves no section"
missing() { printf 'gpu.sh: %s\n' "$*" >&2; exit 69; }

export CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES-$device} PATH=$PATH:/usr/local/cuda/bin
if [ -z "$smoke" ]; then
  [ -e /proc/driver/nvidia/version ] || [ -e /dev/dxg ] || nvidia-smi -L >/dev/null 2>&1 ||
    missing "no NVIDIA driver: neither /proc/driver/nvidia/version nor a working nvidia-smi. This script measures a GPU; --smoke shows that it works without one."
fi
if [ ! -x "$build/bin/kernels_gpu" ] || [ ! -x "$build/bin/holdfast" ]; then
  [ "$build" = build/release ] && [ -z "$smoke" ] || missing "$build has no kernels_gpu or no holdfast: build it with -DHOLDFAST_TESTS=ON"
  command -v nvcc >/dev/null || missing "no nvcc on PATH or in /usr/local/cuda/bin: install the CUDA toolkit (12 or later) and run this again"
  (
    install_missing "${build_packages[@]}" "${test_packages[@]}"
    flags=$(cuda_flags)   # OFF where nvidia-smi names no card: then code for all that are served
    [ "$flags" != -DHOLDFAST_CUDA=OFF ] || flags=-DHOLDFAST_CUDA=ON
    configure_extra="-DHOLDFAST_TESTS=ON $flags" configure_and_build release
  ) || missing "the build failed (its words are above)"
fi
if [ -z "$smoke" ]; then
  card=$("$build/bin/kernels_gpu" --probe 2>&1) || missing "${card#kernels_gpu: }"
else
  card="no GPU: the emulated device, no figures"
fi

out=$build/gpu
mkdir -p "$out" || missing "$out cannot be written"
report=$out/report-$(date -u +%Y%m%dT%H%M%S)-$$.md
work=$(mktemp -d "${TMPDIR:-/tmp}/holdfast-gpu.XXXXXX")
trap 'rm -rf "$work"' EXIT
failed=0
put() { printf '%s\n' "$@" | tee -a "$report"; }

# section NAME TITLE COMMAND...: its output goes to the report; 77: skipped, with what it said. Bounded.
section() {
  local name=$1 title=$2 status=0
  shift 2
  wants "$name" || return 0
  put "" "#### $title" ""
  timeout --kill-after=20 "$((${SECTION_MINUTES:-15} * 60))" "$@" 2>"$work/stderr" | tee -a "$report"
  status=${PIPESTATUS[0]}
  case $status in
    0) ;;
    77) ;;
    124 | 137) failed=1; put "" "**FAILED**: not done within ${SECTION_MINUTES:-15} minutes" ;;
    *) failed=1; put "" "**FAILED** (exit $status)"; tail -n 20 "$work/stderr" | tee -a "$report" ;;
  esac
}
driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1)
commit=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
git diff --quiet HEAD 2>/dev/null || commit="$commit with changes"
put "### $card" "" "Driver ${driver:-unknown}, $(date -u +%F), commit $commit, $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) cores."
export build device smoke work HOLDFAST_BIN=$build/bin HOLDFAST_BUILD=$build HOLDFAST_SOURCE=$PWD
on=cuda
[ -z "$smoke" ] || on=cpu
export on

run_tests() {
  if [ -n "$smoke" ]; then
    n=$(ctest --test-dir "$build" -N -R 'kernels|golden|executor' | sed -n 's/^Total Tests: //p')
    echo "$n tests would run."
    [ "${n:-0}" -gt 0 ]
    return
  fi
  ctest --test-dir "$build" -R 'kernels|golden|executor' -LE bench-smoke -j "$(nproc)" --output-on-failure >"$work/ctest.log" 2>&1
  status=$?
  grep -E 'tests passed|Failed|Timeout' "$work/ctest.log" | sed 's/^/    /'
  [ $status = 0 ] || tail -n 40 "$work/ctest.log" >&2
  return $status
}

run_sanitizer() {
  tool=$(command -v compute-sanitizer) || { echo "skipped: no compute-sanitizer on PATH or in /usr/local/cuda/bin (it is part of the toolkit)"; return 77; }
  [ -z "$smoke" ] || { echo "skipped: no device"; return 77; }
  bad=0
  echo "| tool | tests | result |"
  echo "| --- | --- | --- |"
  for kind in memcheck racecheck; do
    for test in elementwise matmul moe attention draw; do
      # The reference and the device alone: the rest of the backends is not what is looked at.
      HOLDFAST_ONLY_DEVICE=1 timeout 400 "$tool" --tool $kind --error-exitcode 99 "$build/bin/kernels_${test}_test" >"$work/sanitizer.log" 2>&1
      status=$?
      case $status in
        0) result=clean ;;
        124) result="not done within 400 s: nothing found until then" ;;
        *) result="FAILED ($status): $(grep -m 1 -E '^=========     ?[A-Z]|FAILED|ERROR SUMMARY' "$work/sanitizer.log")"; bad=1; tail -n 40 "$work/sanitizer.log" >&2 ;;
      esac
      echo "| $kind | kernels_${test}_test | $result |"
    done
  done
  return $bad
}

run_kernels() {
  if [ -n "$smoke" ]; then "$build/bin/kernels_gpu" --smoke; else "$build/bin/kernels_gpu"; fi
}

run_torch() { "$build/bin/kernels_gpu" --list | python3 tests/bench/gpu_torch.py; }

# model NAME: its path, made or fetched once.
model() {
  case $1 in
    smollm2) if [ -f "${HOLDFAST_SMOLLM2:-}" ]; then echo "$HOLDFAST_SMOLLM2"; elif [ -n "$smoke" ]; then return 1; else fetch_smollm2; fi ;;
    large) kind=(gemma4-26b --layers 6) ;;
    window) kind=(random-gemma4 --context 65536 --layers 6) ;;
  esac
  [ "$1" != smollm2 ] || return
  [ -z "$smoke" ] || kind=(random-gemma4 --context 16384)
  local file="$build/gpu/$1${smoke:+-smoke}.gguf"
  if [ ! -f "$file" ]; then
    "$build/bin/holdfast-make-model" --kind "${kind[@]}" "$file.$$" && mv "$file.$$" "$file" || return 1
  fi
  echo "$file"
}

run_tokens() {
  bad=0
  for name in smollm2 large; do
    if ! file=$(model $name); then
      [ "$name" = large ] && { echo "the random model could not be made" >&2; bad=1; }
      echo "$name: left out, there is no file of it"
      continue
    fi
    counts=1,4,16,64 sizes=(--prompt 512 --generate 128 --repeat 3)
    [ -z "$smoke" ] || counts=1,2 sizes=(--prompt 32 --generate 8 --repeat 1)
    if "$build/bin/holdfast" bench --model "$file" --backend $on --requests $counts "${sizes[@]}" >"$work/bench.txt"; then
      echo "$name:"
      [ -n "$smoke" ] && echo "    ran" || sed 's/^/    /' "$work/bench.txt"
    else
      bad=1
      cat "$work/bench.txt"
    fi
  done
  return $bad
}

run_load() { file=$(model window) && python3 tests/bench/gpu_serve.py load $on "$file" ${smoke:+--short}; }

run_kill() {
  if [ -n "$smoke" ] || ! file=$(model smollm2); then file=$(model window) || return 1; fi
  python3 tests/bench/gpu_serve.py kill $on "$file" ${smoke:+--short}
}

export -f run_tests run_sanitizer run_kernels run_torch model run_tokens run_load run_kill fetch_smollm2 install_missing say die as_root every
export cache
section tests "The kernel tests, on the device beside the other backends" bash -c run_tests
section sanitizer "compute-sanitizer" bash -c run_sanitizer
section kernels "Kernels" bash -c run_kernels
section torch "PyTorch on the same shapes" bash -c run_torch
section tokens "Tokens a second, all requests together; the host's time a decode step, less the wait for its result (aim: below 50 us)" bash -c run_tokens
section load "The field report's load, window pool 0.07" bash -c run_load
section kill "kill -9 of the worker" bash -c run_kill
printf '\nthe report is %s\n' "$report" >&2
exit $failed
