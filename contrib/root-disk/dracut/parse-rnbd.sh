#!/bin/sh
# dracut sources this: the disk needs the network, and the root waits for it.
# SPDX-License-Identifier: BSD-3-Clause
if getarg rnbd= >/dev/null; then
  echo rd.neednet=1 >/etc/cmdline.d/60-rnbd.conf
  # shellcheck disable=SC2154 # hookdir is dracut's
  echo '[ -e /run/initramfs/rnbd/bridge.pid ]' >"$hookdir/initqueue/finished/rnbd.sh"
fi
