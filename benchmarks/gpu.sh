#!/usr/bin/env bash
# Checks every attention backend on a GPU against the CPU's float64 reference, then times ours against the peers: under 8 minutes.
# benchmarks/gpu.sh [options of gpu.py] -> tables, one JSON line last; exit code 1 where a check fails or there is no GPU.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ -x .venv/bin/python ]; then PATH="$PWD/.venv/bin:$PATH"; fi
scripts/peers_env >&2
exec timeout 480 python -m benchmarks.gpu "$@"
