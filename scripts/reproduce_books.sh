#!/usr/bin/env bash
# Four models of equal size on novels, tuned alike, three seeds, equal text and equal time -> docs/books: report, pictures, numbers.
# scripts/reproduce_books.sh [--small] FOLDER -> FOLDER holds train/ valid/ test/ with books as text. 1½ to 2½ hours
# on two cores (--small: half an hour, to build/books-small); stopped at any time, the same command goes on.
set -euo pipefail
here="$(cd "$(dirname "$0")/.." && pwd)"
python="$here/.venv/bin/python"
if [ ! -x "$python" ]; then python="${PYTHON:-python3}"; fi
PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}" exec "$python" "$here/scripts/books.py" "$@"
