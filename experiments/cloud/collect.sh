#!/usr/bin/env bash
# Joins the shards of a finished job in one file here, prints its summaries, and gives the TPUs back.
#
#   experiments/cloud/collect.sh --settings my_settings.sh [--to FILE] [--keep] [--dry-run]
#
# FILE is NAME.jsonl.gz by default. With --keep the TPUs stay, and go on costing.
set -euo pipefail
# shellcheck source=experiments/cloud/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
read_flags "$@"

# It fails, and says what is missing, unless every input has one record.
run python3 -m decoding_jax.infer.merge "$OUTPUT" -o "${TO:-$NAME.jsonl.gz}"
run gcloud storage cat "$OUTPUT/summary*.json"
if [ -z "$KEEP" ]; then
  resources delete "$NAME" --force --quiet
fi
