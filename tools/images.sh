#!/usr/bin/env bash
# Builds the three images as tranche.local/tranche-PART:VERSION.
set -euo pipefail

version=$1
for engine in docker podman; do
  if command -v "$engine" >/dev/null && "$engine" info >/dev/null 2>&1; then
    for part in extender webhook nodeplugin; do
      "$engine" build --target "$part" --build-arg "VERSION=$version" --tag "tranche.local/tranche-$part:$version" .
    done
    exit 0
  fi
done
echo "image: neither docker nor podman works here; install one, or start its service, and try again" >&2
exit 1
