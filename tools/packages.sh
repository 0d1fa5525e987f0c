#!/usr/bin/env bash
# Installs the system packages that building and the local cluster need, with
# apt and as root; elsewhere it says what to install. Does nothing if all is
# there.
set -euo pipefail

missing=()
command -v gcc >/dev/null || missing+=(gcc libc6-dev)
command -v pkg-config >/dev/null || missing+=(pkg-config)
command -v ip >/dev/null || missing+=(iproute2)
# runc is built against it.
pkg-config --exists libseccomp 2>/dev/null || missing+=(libseccomp-dev)
((${#missing[@]})) || exit 0

if ! command -v apt-get >/dev/null || [[ $(id -u) != 0 ]]; then
  echo "packages: please install what Debian calls: ${missing[*]}" >&2
  echo "packages: (as root on Debian or Ubuntu this target does it itself)" >&2
  # Without libseccomp and ip only the real node is missing.
  command -v gcc >/dev/null || exit 1
  exit 0
fi
echo "packages: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
install() { apt-get -qq install --yes --no-install-recommends "${missing[@]}" >/dev/null; }
# The package lists of a fresh machine are empty or old.
install 2>/dev/null || { apt-get -qq update && install; }
