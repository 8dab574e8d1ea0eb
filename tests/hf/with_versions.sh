#!/usr/bin/env bash
# The opt-in job: the tests of dew-hf with each release of `datasets` that it stands for, in environments of their own.
#
#   bash tests/hf/with_versions.sh [options of pytest]
#
# VERSIONS names other releases than the oldest allowed one and the newest. It needs uv, the package index, and about
# 1 GB in the temp folder for some minutes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=()

for version in ${VERSIONS:-"==5.1.0" ">=5.2"}; do
  venv=$scratch/$version
  uv venv --quiet --python 3.11 "$venv"
  # Without the constraints of this workspace, which pin one release of each package.
  uv pip install --quiet --no-config --python "$venv/bin/python" "datasets$version" \
    -e "dew-core[images,testing]" -e dew-hf aiohttp flask flask-cors hypothesis "moto[s3]" psutil pytest s3fs
  "$venv/bin/python" -c 'import datasets, pyarrow; print("datasets", datasets.__version__, "pyarrow", pyarrow.__version__)'
  "$venv/bin/python" -m pytest tests/hf -q "$@" || failed+=("$version")
done

if ((${#failed[@]})); then
  echo "failed with datasets${failed[*]}" >&2
  exit 1
fi
