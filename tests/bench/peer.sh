#!/usr/bin/env bash
# holdfast bench beside a peer engine from PyPI on the same file and threads, in one session. Builds nothing.
# usage: tests/bench/peer.sh [MODEL.gguf] [THREADS]   (default: SmolLM2-135M-Instruct Q4_1, 2)
set -euo pipefail
cd "$(dirname "$0")/../.."
. deploy/packages.sh
. deploy/models.sh
[ -x build/release/bin/holdfast ] || die "build first: deploy/quickstart.sh --build-only"
model=${1:-$(fetch_smollm2)}
venv=build/venv-peer
[ -x $venv/bin/python ] || python3 -m venv $venv
$venv/bin/python -c 'import xllamacpp' 2>/dev/null || $venv/bin/python -m pip install --quiet --disable-pip-version-check xllamacpp==2026.10.11549
exec $venv/bin/python tests/bench/peer.py build/release/bin "$model" "${2:-2}"
