# shellcheck shell=bash
# Sources lib.sh where images of a Ceph cluster can be exported. Skips the script where Ceph's packages
# (the group `ceph` of contrib/apt-packages) or the module are missing.
# SPDX-License-Identifier: BSD-3-Clause
for program in ceph-mon ceph-mgr ceph-osd ceph rbd; do
  if ! command -v "$program" >/dev/null; then
    echo "skipped: $program is missing; contrib/install-packages ceph brings it"
    exit 77
  fi
done
source "${BASH_SOURCE[0]%/*}/lib.sh"
if [[ ! -e ${server_program%/*}/rnbd-backend-rbd.so ]]; then
  echo "skipped: rnbd-backend-rbd.so is not built; it needs librbd-dev and RNBDKIT_RBD=ON"
  exit 77
fi
