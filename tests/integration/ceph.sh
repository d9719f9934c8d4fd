#!/bin/bash
# Images of a Ceph cluster that runs here for the test, behind rnbd-server. Skips where Ceph's packages
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

cluster_dir=$(mktemp -d "${TMPDIR:-/tmp}/rnbd-ceph.XXXXXX")
cluster() { "$source_dir/tests/ceph/cluster" "$1" "$cluster_dir"; }
# However the script ends, the cluster ends with it.
end_cluster() {
  cluster stop
  rm -rf "$cluster_dir"
}
trap end_cluster EXIT
cluster start
export CEPH_CONF=$cluster_dir/ceph.conf

carries() {
  rbd create --size 64M rbd/carries
  start_server --export disk0=rbd:rbd/carries
  attach disk0
  random_file new 64M
  nbdcopy --flush new "$uri"
  nbdcopy "$uri" back
  cmp new back
  stop "$face"
  stop server
  rbd export --no-progress rbd/carries far
  cmp new far
}
it "an image takes and gives back data, and rbd finds the same" carries

zeroes_and_holes() {
  rbd create --size 64M rbd/holes
  start_server --export disk0=rbd:rbd/holes
  attach disk0
  nbdsh <<'END'
h.pwrite(b"x" * 8388608, 0, nbd.CMD_FLAG_FUA)
h.zero(4096, 4096)
assert h.pread(12288, 0) == b"x" * 4096 + bytes(4096) + b"x" * 4096
h.trim(4194304, 4194304)
h.flush()
assert h.pread(4194304, 4194304) == bytes(4194304)
END
  nbdinfo --map "$uri" | tee map
  grep -q 'hole' map
  grep -qE '^ *0 +4194304 +0 +data' map
}
it "zeroes are zeroes, and a discarded object is a hole" zeroes_and_holes

a_snapshot() {
  rbd create --size 16M rbd/base
  random_file old 16M
  start_server --export disk0=rbd:rbd/base
  attach disk0
  nbdcopy --flush old "$uri"
  rbd snap create --no-progress rbd/base@monday
  nbdsh <<<'h.pwrite(b"y" * 65536, 0, nbd.CMD_FLAG_FUA)'
  stop "$face"
  stop server
  start_server --export disk0=rbd:rbd/base@monday,ro
  attach disk0
  nbdcopy "$uri" back
  cmp old back
}
it "a snapshot stays as it was" a_snapshot

a_second_writer() {
  rbd create --size 16M rbd/second
  start_server --export disk0=rbd:rbd/second
  attach disk0
  writes
  fails limited rbd bench --io-type write --io-size 4K --io-total 4K rbd/second
  writes
}
it "another writer is kept out by the lock" a_second_writer

fenced() {
  rbd create --size 16M rbd/fenced
  start_server --export disk0=rbd:rbd/fenced
  attach disk0
  writes
  local holder
  holder=$(rbd lock list rbd/fenced | awk 'END { print $NF }')
  ceph osd blocklist add "$holder" 60
  fails writes
  grep -q 'has fenced this server off' "$case_dir/server.log"
}
it "a server that the cluster has fenced off writes nothing more, and says so" fenced

no_such_image() {
  start_server --export gone=rbd:rbd/gone --export here=memory:16M
  grep -q 'rbd ls POOL' "$case_dir/server.log"
  attach here
  writes
}
it "an image that is not there keeps its export waiting, and no other" no_such_image

finish
