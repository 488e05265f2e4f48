#!/usr/bin/env bash
# Runs one test file with the interpreter that has what it needs. A file whose every test skipped exits 77, so that ctest shows it.
set -u
python=${HOLDFAST_PYTHON:-}
[ -n "$python" ] || { [ -x "$HOLDFAST_SOURCE/build/venv/bin/python" ] && python=$HOLDFAST_SOURCE/build/venv/bin/python; }
[ -n "$python" ] || python=/usr/bin/python3
out=$("$python" -m pytest -p no:cacheprovider -q -rs --durations=3 "$@" 2>&1)
rc=$?
printf '%s\n' "$out"
if [ $rc = 0 ] && ! printf '%s\n' "$out" | grep -qE '[0-9]+ passed'; then exit 77; fi
exit $rc
