# What each host of the TPU does when it boots: launch.sh puts the settings before these lines.
# shellcheck shell=bash disable=SC2153
set -euo pipefail
exec >>/var/log/decoding_jax.log 2>&1
echo "== $(date -u) on $(hostname)"

mkdir -p /opt/decoding_jax
cd /opt/decoding_jax
export HOME=/root PATH="/root/.local/bin:$PATH"
gcloud storage cp "$FILES/*" .

# The images have Python 3.10, and the library needs 3.11. Versions are those that it was tested with.
if [ ! -f installed ]; then
  rm -rf venv src
  curl -LsSf https://astral.sh/uv/install.sh | sh
  uv venv --python 3.11 venv
fi
# shellcheck disable=SC1091
source venv/bin/activate
if [ ! -f installed ]; then
  uv pip install -c constraints.txt "./${WHEEL}[$EXTRAS]" "jax[tpu]"
  bash -euo pipefail -c "${SETUP:-true}"
  touch installed
fi

# A host that fails ends the others of its slice, and all of them start again.
for attempt in 1 2 3 4 5; do
  echo "== attempt $attempt"
  if bash -euo pipefail -c "$JOB"; then
    echo "== done"
    exit 0
  fi
  sleep 60
done
echo "== failed"
