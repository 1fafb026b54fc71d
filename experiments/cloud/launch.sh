#!/usr/bin/env bash
# Puts the library and the gin file into the bucket, and asks for TPUs that then run the job.
#
#   experiments/cloud/launch.sh --settings my_settings.sh [--dry-run]
set -euo pipefail
# shellcheck source=experiments/cloud/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
read_flags "$@"
cd "$ROOT"
[ -f "$GIN_FILE" ] || fail "$SETTINGS: expected a file, got GIN_FILE=$GIN_FILE"
for file in "$GIN_FILE" ${MORE_FILES:-}; do
  ! line=$(grep -ns YOUR_ "$file") || fail "$file: expected a name of yours in line ${line%%$'\n'*}"
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

run python3 -m pip wheel --quiet --no-deps --wheel-dir "$work/wheels" .
run gcloud storage cp "$work/wheels/*.whl" "$FILES/"
run gcloud storage cp "$GIN_FILE" "$FILES/job.gin"
run gcloud storage cp experiments/cloud/constraints.txt "$FILES/"
for file in ${MORE_FILES:-}; do
  run gcloud storage cp "$file" "$FILES/"
done

# The bucket keeps the wheels of earlier versions, so the hosts are told which one to install.
wheels=("$work"/wheels/*.whl)
# shellcheck disable=SC2034
WHEEL=$(basename "${wheels[0]}")

# Each host runs this script whenever it boots.
{
  echo '#!/usr/bin/env bash'
  for name in FILES WHEEL EXTRAS SETUP JOB; do
    printf '%s=%q\n' "$name" "${!name:-}"
  done
  cat "$HERE/on_host.sh"
} >"$work/startup.sh"
if [ -n "$DRY_RUN" ]; then
  echo "# $work/startup.sh:"
  sed 's/^/# | /' "$work/startup.sh"
fi

flags=()
# shellcheck disable=SC2153  # read_flags has read it from the settings.
[ "$SPOT" != yes ] || flags+=(--spot)
resources create "$NAME" --node-id="$NAME" --accelerator-type="$ACCELERATOR" \
  --runtime-version="$RUNTIME" --metadata-from-file=startup-script="$work/startup.sh" \
  ${flags[@]+"${flags[@]}"}
