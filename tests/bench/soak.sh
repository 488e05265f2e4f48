#!/usr/bin/env bash
# The field report's load in full against the release build: 4 conversations x 4 turns and their 1/2/8 variants, a system prompt of about
# 7.7k words' tokens, max_tokens 160, at least 275 requests a run, window ratios 0.2, 0.07 and the floor, 0.2 % cancels, solo replay.
# Prints one line a run; exits 1 if any check failed.
# usage: tests/bench/soak.sh [MODEL.gguf]   (default: a random sliding-window model)
set -euo pipefail
cd "$(dirname "$0")/../.."
bin=build/release/bin
[ -x $bin/holdfast ] || { echo "build first: deploy/quickstart.sh --build-only" >&2; exit 1; }
work=$(mktemp -d "${TMPDIR:-/tmp}/holdfast-soak.XXXXXX")
trap 'kill "${server:-}" 2>/dev/null; wait 2>/dev/null; rm -rf "$work"' EXIT
model=${1:-}
if [ -z "$model" ]; then
  model=$work/model.gguf
  $bin/holdfast-make-model --kind random-gemma4 --context 65536 "$model" >/dev/null
fi
tokens=131072
# The ratio at which the window pool stands exactly at its floor, as the server itself states it.
floor=$($bin/holdfast serve --model "$model" --port 0 --num-tokens $tokens --max-running-requests 4 --swa-full-tokens-ratio 0.00001 2>&1 |
  grep -o 'swa-full-tokens-ratio [0-9.]*[0-9]' | head -n 1 | cut -d' ' -f2) || true
failed=0
for ratio in 0.2 0.07 ${floor:-}; do
  for conversations in 1 2 4 8; do
    mkfifo "$work/out"
    $bin/holdfast serve --model "$model" --port 0 --runtime-dir "$work/run" --num-tokens $tokens --max-running-requests 4 \
      --swa-full-tokens-ratio "$ratio" >"$work/out" 2>"$work/log" &
    server=$!
    read -r _ url <"$work/out"
    rounds=$(((275 + 4 * conversations - 1) / (4 * conversations)))
    line=$(python3 tests/support/agent_load.py --base "$url" --tool-choice none --conversations $conversations --rounds $rounds --verify-solo \
      --cancel-rate 0.002 --timeout 600) || failed=1
    status=$($bin/holdfast ctl --runtime-dir "$work/run" status --json)
    findings=$(printf '%s' "$status" | python3 -c 'import json,sys; s=json.load(sys.stdin); print(len(s["findings"]), s["health"]["restarts"])')
    [ "$findings" = "0 0" ] || failed=1
    printf 'ratio %s conversations %s findings/restarts %s %s\n' "$ratio" "$conversations" "$findings" "$line"
    kill -TERM $server
    wait $server || failed=1
    rm -f "$work/out"
  done
done
[ $failed = 0 ] && echo "soak clean" || echo "soak FAILED"
exit $failed
