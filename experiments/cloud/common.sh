# What the scripts of this folder share: their flags, their settings, and dry runs.
# shellcheck shell=bash

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck disable=SC2034
ROOT=$(cd "$HERE/../.." && pwd)

# fail MESSAGE: one line on standard error, and the end.
fail() {
  echo "$(basename "$0"): $1" >&2
  exit 1
}

# The values of a settings file, which launch.sh sends to the hosts as far as they need them:
#   PROJECT, BUCKET   yours; by `export PROJECT=... BUCKET=gs://...`, or in the file
#   NAME, ZONE        of the queued resource and its TPU; the zone has to have the accelerator
#   ACCELERATOR, RUNTIME, SPOT    the TPU, its image, and `yes` for one that may be taken away
#   GIN_FILE          what is decoded, and how
# and those with a default:
#   INPUT, OUTPUT     of the job:                 $BUCKET/inputs.txt, $BUCKET/$NAME/out
#   FILES             what the hosts fetch:       $BUCKET/$NAME/files
#   MORE_FILES        further local files for it
#   EXTRAS, SETUP     what a host installs, and a command after that
#   JOB               the command of each host, run in /opt/decoding_jax
read_settings() {
  unset NAME ZONE ACCELERATOR RUNTIME SPOT GIN_FILE INPUT OUTPUT FILES MORE_FILES EXTRAS SETUP JOB
  PROJECT=${PROJECT:-} BUCKET=${BUCKET:-}
  # shellcheck source=experiments/cloud/settings/v5e_8.sh
  source "$SETTINGS"
  local name
  for name in NAME ZONE ACCELERATOR RUNTIME SPOT GIN_FILE; do
    [ -n "${!name:-}" ] || fail "$SETTINGS: has no $name"
  done
  [[ -n $PROJECT && $PROJECT != *YOUR_* ]] ||
    fail "PROJECT: expected the id of your project, as by \`export PROJECT=...\`, got '$PROJECT'"
  [[ $BUCKET == gs://?* && $BUCKET != *YOUR_* ]] ||
    fail "BUCKET: expected your bucket, as by \`export BUCKET=gs://...\`, got '$BUCKET'"
  : "${INPUT:=$BUCKET/inputs.txt}" "${OUTPUT:=$BUCKET/$NAME/out}" "${FILES:=$BUCKET/$NAME/files}"
  : "${EXTRAS:=cloud,t5x}"
  JOB=${JOB:-"python -m decoding_jax.infer --distributed --gin_file=job.gin\
 --gin.INPUT='\"$INPUT\"' --gin.OUTPUT_DIR='\"$OUTPUT\"'"}
  [[ $FILES == gs://*/* && $OUTPUT == gs://*/* ]] ||
    fail "$SETTINGS: expected folders of buckets, gs://..., got FILES=$FILES and OUTPUT=$OUTPUT"
}

# read_flags "$@": sets DRY_RUN, and SETTINGS, EVERY, TO and KEEP from the flags; reads the settings.
read_flags() {
  DRY_RUN='' SETTINGS='' EVERY='' TO='' KEEP=''
  while [ $# -gt 0 ]; do
    case $1 in
      --dry-run) DRY_RUN=yes ;;
      --keep) KEEP=yes ;;
      --settings | --every | --to)
        [ $# -gt 1 ] || fail "$1: got no value"
        case $1 in
          --settings) SETTINGS=$2 ;;
          --every) EVERY=$2 ;;
          --to) TO=$2 ;;
        esac
        shift
        ;;
      *) fail "expected --settings FILE, --dry-run, --every SECONDS, --to FILE or --keep, got $1" ;;
    esac
    shift
  done
  [ -z "$EVERY" ] || [ "$EVERY" -gt 0 ] 2>/dev/null || fail "--every: expected seconds, got $EVERY"
  [ -f "$SETTINGS" ] || fail "--settings: expected a file such as $HERE/settings/v5e_1.sh, got '$SETTINGS'"
  read_settings
  export DRY_RUN SETTINGS EVERY TO KEEP SETUP
}

# run COMMAND...: runs a command, or prints it in a dry run.
run() {
  if [ -n "$DRY_RUN" ]; then
    printf '+'
    printf ' %q' "$@"
    printf '\n'
  else
    "$@"
  fi
}

# resources VERB ...: a command about the queued resource.
resources() {
  run gcloud compute tpus queued-resources "$@" --project="$PROJECT" --zone="$ZONE"
}

# state: prints the state of the queued resource, or NONE.
state() {
  if [ -n "$DRY_RUN" ]; then
    resources describe "$NAME" "--format=value(state.state)" >&2
    echo "${ASSUMED_STATE:-ACTIVE}"
  else
    resources describe "$NAME" "--format=value(state.state)" 2>/dev/null || echo NONE
  fi
}

# progress: prints how many shards are finished, and of how many.
progress() {
  local names
  if [ -n "$DRY_RUN" ]; then
    run gcloud storage ls "$OUTPUT/" >&2
    echo "${ASSUMED_PROGRESS:-0 1}"
    return
  fi
  names=$(gcloud storage ls "$OUTPUT/" 2>/dev/null | sed -n 's/.*-[0-9]*-of-\([0-9]*\)\.jsonl$/\1/p') || true
  if [ -z "$names" ]; then
    echo 0 0
  else
    echo "$(wc -l <<<"$names") $((10#$(head -n 1 <<<"$names")))"
  fi
}
