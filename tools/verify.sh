#!/usr/bin/env bash
# Generates everything again and fails if a file is then not as it was, or was
# not there. It compares contents before and after instead of asking git, so
# that it also serves a person with other changes in the tree.
set -euo pipefail

paths=(pkg/api manifests docs/reference)
state() { find "${paths[@]}" -type f -print0 | sort -z | xargs -0 sha256sum; }

before=$(state)
make --no-print-directory generate >/dev/null
if ! diff <(echo "$before") <(state) >&2; then
  echo 'verify: the files above were not up to date; they are now, so commit them' >&2
  exit 1
fi
# In CI a generated file that nobody committed would pass the comparison.
if [[ ${CI:-} == true ]] && [[ -n $(git status --porcelain -- "${paths[@]}") ]]; then
  git status --short -- "${paths[@]}" >&2
  echo 'verify: the files above are not committed as generated' >&2
  exit 1
fi
