#!/bin/bash
# dracut: attaches the disk of rnbd= when the network is up. See rnbd-root(7).
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck disable=SC2154 # moddir and initdir are dracut's

check() {
  require_binaries rnbd-bridge ldd || return 1
}

depends() {
  echo network
}

installkernel() {
  instmods nbd
}

install() {
  inst_multiple cp cat chroot grep mkdir mount sleep modprobe
  inst_simple /usr/lib/rnbdkit/root-disk/attach
  /usr/lib/rnbdkit/root-disk/tree "$initdir/usr/lib/rnbdkit/root-disk/root"
  inst_hook cmdline 90 "$moddir/parse-rnbd.sh"
  inst_hook initqueue/settled 90 "$moddir/rnbd-settled.sh"
  dracut_need_initqueue
}
