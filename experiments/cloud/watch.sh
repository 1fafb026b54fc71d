#!/usr/bin/env bash
# Prints the state of the TPUs, how many shards are finished, and the last lines of the job's log.
#
#   experiments/cloud/watch.sh --settings my_settings.sh [--every SECONDS] [--dry-run]
set -euo pipefail
# shellcheck source=experiments/cloud/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
read_flags "$@"

while true; do
  now=$(state)
  read -r finished all <<<"$(progress)"
  echo "$NAME: $now, $finished of $all shards are finished"
  if [ "$now" = ACTIVE ]; then
    run gcloud compute tpus tpu-vm ssh "$NAME" --project="$PROJECT" --zone="$ZONE" --worker=0 \
      --command="tail -n 5 /var/log/decoding_jax.log" || true
  fi
  [ -n "$EVERY" ] && [ -z "$DRY_RUN" ] || break
  sleep "$EVERY"
done
