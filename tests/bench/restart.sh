#!/usr/bin/env bash
# What a restart costs: loading against mapping the weights, and kill -9 to the first resumed token, streaming, for a small real model
# (HOLDFAST_SMOLLM2=FILE; left out with a reason when not set) and for a random one of about 3 GB, made in TMPDIR and deleted afterwards.
# Prints the rows of the table in docs/restart.md.
# usage: tests/bench/restart.sh [BUILD_FOLDER] [KILLS]   (default build/release, 5)
set -euo pipefail
cd "$(dirname "$0")/../.."
build=${1:-build/release}
kills=${2:-5}
[ -x "$build/bin/holdfast" ] || { echo "build first: deploy/quickstart.sh --build-only" >&2; exit 1; }
work=$(mktemp -d "${TMPDIR:-/tmp}/holdfast-restart.XXXXXX")
trap 'rm -rf "$work"' EXIT
echo "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) cores, $(date -u +%F), load $(cut -d' ' -f1 /proc/loadavg)"
models=()
if [ -f "${HOLDFAST_SMOLLM2:-}" ]; then
  models+=("$HOLDFAST_SMOLLM2")
else
  echo "SmolLM2 left out: HOLDFAST_SMOLLM2 names no file"
fi
if [ "${HOLDFAST_RESTART_LARGE:-1}" = 1 ]; then
  "$build/bin/holdfast-make-model" --kind random-llama --type "${HOLDFAST_RESTART_TYPE:-q8_0}" --dim 4096 --layers "${HOLDFAST_RESTART_LAYERS:-20}" "$work/random.gguf"
  models+=("$work/random.gguf")
fi
HOLDFAST_BIN=$build/bin HOLDFAST_BUILD=$build python3 tests/bench/restart.py "$kills" "${models[@]}"
