#!/bin/bash
# Images of a Ceph cluster that runs here for the test, behind rnbd-server: each operation.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/ceph-cluster.sh"

conforms() {
  rbd create --size 4M rbd/conforms
  RNBD_STORAGE=rbd:rbd/conforms limited "${server_program%/*}/ceph_conformance"
}
it "the backend passes the suite that all backends pass" conforms

carries() {
  rbd create --size 64M rbd/carries
  start_server --export disk0=rbd:rbd/carries
  attach disk0
  random_file new 64M
  nbdcopy --flush new "$uri"
  nbdcopy "$uri" back
  cmp new back
  stop nbdkit
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
  stop nbdkit
  stop server
  start_server --export disk0=rbd:rbd/base@monday,ro
  attach disk0
  nbdcopy "$uri" back
  cmp old back
}
it "a snapshot stays as it was" a_snapshot

grows() {
  rbd create --size 16M rbd/grows
  start_server --export disk0=rbd:rbd/grows
  attach disk0
  [[ $(nbdinfo --size "$uri") == $((16 << 20)) ]]
  rbd resize --no-progress --size 32M rbd/grows
  eventually 60 has_size $((32 << 20))
  nbdsh <<'PY'
h.pwrite(b"z" * 4096, (32 << 20) - 4096, nbd.CMD_FLAG_FUA)
assert h.pread(4096, (32 << 20) - 4096) == b"z" * 4096
PY
}
has_size() { [[ $(nbdinfo --size "$uri") == "$1" ]]; }
it "an image that grows elsewhere grows here: its watch tells" grows

# To read behind the new end fails; nobody is told of it before he looks.
shrinks() {
  rbd create --size 16M rbd/shrinks
  start_server --export disk0=rbd:rbd/shrinks
  attach disk0
  writes
  rbd resize --no-progress --allow-shrink --size 8M rbd/shrinks
  nbdsh <<'PY'
assert h.pread(65536, 0) == b"x" * 65536
fails_with(errno.EIO, h.pread, 4096, 12 << 20)
fails_with(errno.EIO, h.pwrite, b"z" * 4096, 12 << 20)
h.pwrite(b"z" * 4096, 4 << 20, nbd.CMD_FLAG_FUA)
PY
}
it "an image that is made smaller elsewhere gives errors behind its end only" shrinks

# An answered write would be in this server's memory only, whatever ceph.conf says.
cached() {
  rbd create --size 16M rbd/cached
  rbd config image set rbd/cached rbd_cache true
  start_server --export disk0=rbd:rbd/cached
  says server.log 'looking at its configuration failed'
  rbd config image remove rbd/cached rbd_cache
  eventually 60 grep -q "export 'disk0' is served now" server.log
  attach disk0
  writes
}
it "an image whose own configuration has a cache is not exported before that is gone" cached

in_a_namespace() {
  rbd namespace create rbd/tenant
  rbd create --size 16M rbd/tenant/disk
  start_server --export "disk0=rbd:rbd/tenant/disk,conf=$CEPH_CONF,id=admin"
  attach disk0
  writes
  rbd export --no-progress rbd/tenant/disk far
  cmp -n 65536 far <(yes x | tr -d '\n' | head -c 65536)
}
it "an image in a namespace, with conf= and id=" in_a_namespace

# The way that needs no module: another program reaches the cluster.
by_qemu() {
  requires qemu-storage-daemon
  find /usr/lib -name block-rbd.so 2>/dev/null | grep -q . || skip "qemu-block-extra is not installed"
  rbd create --size 16M rbd/qemu
  spawn qsd qemu-storage-daemon \
    --blockdev "driver=rbd,node-name=vm,pool=rbd,image=qemu,conf=$CEPH_CONF,cache.direct=on,discard=unmap" \
    --nbd-server "addr.type=unix,addr.path=$PWD/qsd.sock" --export type=nbd,id=vm,node-name=vm,name=vm,writable=on
  eventually 30 test -S qsd.sock
  start_server --export "disk0=nbd+unix:///vm?socket=$PWD/qsd.sock"
  attach disk0
  random_file new 8M
  nbdcopy --flush new "$uri"
  nbdinfo --map "$uri" | grep -qE '^ *8388608 +8388608 +3 +hole,zero'
  stop nbdkit
  stop server
  stop qsd
  rbd export --no-progress rbd/qemu far
  cmp -n $((8 << 20)) new far
}
it "an image by way of nbd: and qemu-storage-daemon" by_qemu

no_such_image() {
  start_server --export gone=rbd:rbd/gone --export here=memory:16M
  eventually 10 grep -q 'rbd ls POOL' "$case_dir/server.log"
  attach here
  writes
}
it "an image that is not there keeps its export waiting, and no other" no_such_image

finish
