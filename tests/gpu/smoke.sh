#!/usr/bin/env bash
# Builds in place with the running python3 (no network) and runs the GPU tests named on the command line (default: the runtime's).
# Results lie in $OUT when it is set. A test that hangs ends after two minutes.
set -uo pipefail
cd "$(dirname "$0")/../.."
out="${OUT:-build/smoke}"
mkdir -p "$out"
begin=$(date +%s)
MAX_JOBS="${MAX_JOBS:-$(nproc)}" ./configure || exit 1
echo "built in $(($(date +%s) - begin)) s"
export PYTHONPATH="$PWD" PYTHONUNBUFFERED=1
python="$(cat build/python)"
"$python" -m ark_torch info
"$python" -m pytest -q -p no:cacheprovider --timeout 120 -rA --tb=short "${@:-tests/gpu/test_runtime.py}" 2>&1 | tee "$out/tests.log" | tail -n 150
