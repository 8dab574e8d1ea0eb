#!/usr/bin/env bash
# The opt-in job: prepares datasets with TensorFlow in an environment of its own, and reads them in this one, without.
#
#   bash tests/tfds/with_tensorflow.sh [options of pytest]
#
# It needs uv, the package index, and about 2 GB in the temp folder for some minutes. PYTEST names another command than
# `uv run pytest`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

uv venv --quiet --python 3.11 "$scratch/venv"
uv pip install --quiet --python "$scratch/venv/bin/python" \
  array-record attrs importlib-resources opencv-python-headless pillow pluggy tensorflow-cpu tensorflow-datasets
TF_CPP_MIN_LOG_LEVEL=3 "$scratch/venv/bin/python" tests/tfds/prepare_with_tensorflow.py "$scratch/data"

export DEW_TFDS_DATA=$scratch/data DEW_TFDS_PYTHON=$scratch/venv/bin/python
read -ra pytest <<<"${PYTEST:-uv run pytest}"
"${pytest[@]}" -m tensorflow tests/tfds/test_with_tensorflow.py "$@"
