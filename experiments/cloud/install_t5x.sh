#!/usr/bin/env bash
# Installs T5X into the active environment, at the versions that its tests here run with.
#
#   experiments/cloud/install_t5x.sh FOLDER
#
# T5X, AirIO and jestimator are on no package index: FOLDER gets their repositories, to be put on
# PYTHONPATH.
set -euo pipefail
if [ $# != 1 ]; then
  echo "install_t5x.sh: expected a folder, got $# arguments" >&2
  exit 1
fi
uv pip install -c "$(dirname "${BASH_SOURCE[0]}")/constraints.txt" flax optax orbax-checkpoint \
  tensorstore clu chex fiddle gin-config jaxtyping cached_property tensorflow-cpu tensorboard seqio grain

# at NAME REPOSITORY COMMIT: the files of a repository at a commit, in FOLDER/NAME.
folder=$1
at() {
  git init --quiet "$folder/$1"
  git -C "$folder/$1" fetch --quiet --depth 1 "https://github.com/$2" "$3"
  git -C "$folder/$1" checkout --quiet FETCH_HEAD
}
at t5x google-research/t5x cc342d419ec3e3e9c4bf1df33c82330cafdc1e16
at airio google/airio 69897df7d9a427b947a9f7bb4164c7782b43e601
at jestimator google-research/jestimator 326824a477feef6d92e6f44175000907a72899ca
