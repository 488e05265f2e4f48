#!/usr/bin/env bash
# NVIDIA's AIPerf as a client: streamed chats under load, every one of which must end well. Its own report is printed; exits 1 when a request
# failed. By hand: its packages take over a gigabyte. Builds nothing.
# usage: tests/bench/aiperf.sh [MODEL.gguf]   (default: SmolLM2-135M-Instruct Q4_1)
#   AIPERF_CONCURRENCY=8  AIPERF_REQUESTS=100  AIPERF_INPUT=600 (bytes)  AIPERF_OUTPUT=64 (tokens)
set -euo pipefail
cd "$(dirname "$0")/../.."
. deploy/packages.sh
. deploy/models.sh
bin=${HOLDFAST_BIN:-build/release/bin}
[ -x "$bin/holdfast" ] || die "build first: deploy/quickstart.sh --build-only"
model=${1:-$(fetch_smollm2)}
venv=${AIPERF_VENV:-build/venv-aiperf}
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/python" -c 'import aiperf' 2>/dev/null ||
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary :all: aiperf==0.13.0
work=$(mktemp -d "${TMPDIR:-/tmp}/holdfast-aiperf.XXXXXX")
trap 'kill "${server:-}" 2>/dev/null; wait 2>/dev/null; rm -rf "$work"' EXIT

# It wants a tokenizer to write prompts of a length; its own comes from the network. One token a byte will do: the server counts.
"$venv/bin/python" - "$work/tokenizer" 2>/dev/null <<'PYTHON'
import sys
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
t = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, merges=[]))
t.pre_tokenizer, t.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
t.add_special_tokens(["<end>"])
PreTrainedTokenizerFast(tokenizer_object=t, eos_token="<end>").save_pretrained(sys.argv[1])
PYTHON

mkfifo "$work/out"
"$bin/holdfast" serve --model "$model" --port 0 --runtime-dir "$work/run" >"$work/out" 2>"$work/log" &
server=$!
read -r _ url <"$work/out" || { tail -n 20 "$work/log" >&2; exit 1; }
"$venv/bin/aiperf" profile --model served --url "$url" --endpoint-type chat --streaming --tokenizer "$work/tokenizer" --use-server-token-count \
  --concurrency "${AIPERF_CONCURRENCY:-8}" --request-count "${AIPERF_REQUESTS:-100}" --isl "${AIPERF_INPUT:-600}" --osl "${AIPERF_OUTPUT:-64}" \
  --extra-inputs temperature:0 --random-seed 1 --ui none --artifact-dir "$work/report" >"$work/console" 2>&1 || { tail -n 40 "$work/console" >&2; exit 1; }
cat "$work"/report/profile_export_console.txt
"$venv/bin/python" - "$work/report/profile_export_aiperf.json" "${AIPERF_REQUESTS:-100}" <<'PYTHON'
import json, sys
report = json.load(open(sys.argv[1]))
answered, failed = int(report["request_count"]["avg"]), report.get("error_summary") or []
for error in failed:
    print("failed:", error["count"], "x", error["error_details"]["message"], file=sys.stderr)
sys.exit(0 if answered == int(sys.argv[2]) and not failed else 1)
PYTHON
echo "aiperf: every request answered"
