#!/usr/bin/env bash
# Asks for TPUs again if they were taken away, and with --every SECONDS goes on until all shards are
# finished. The job then continues after the last finished shard.
#
#   experiments/cloud/resume.sh --settings my_settings.sh [--every SECONDS] [--dry-run]
set -euo pipefail
# shellcheck source=experiments/cloud/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
read_flags "$@"
again=(--settings "$SETTINGS")
[ -z "$DRY_RUN" ] || again+=(--dry-run)

while true; do
  read -r finished all <<<"$(progress)"
  if [ "$all" -gt 0 ] && [ "$finished" -ge "$all" ]; then
    echo "$NAME: all $all shards are finished"
    break
  fi
  now=$(state)
  echo "$NAME: $now, $finished of $all shards are finished"
  case $now in
    SUSPENDED | FAILED)
      resources delete "$NAME" --force --quiet
      "$HERE/launch.sh" "${again[@]}"
      ;;
    NONE) "$HERE/launch.sh" "${again[@]}" ;;
  esac
  [ -n "$EVERY" ] && [ -z "$DRY_RUN" ] || break
  sleep "$EVERY"
done
