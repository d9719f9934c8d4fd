# shellcheck shell=bash
# Storage that holds a write until it is told, for tests that look for ghost writes.
# SPDX-License-Identifier: BSD-3-Clause

# held_storage FOLDER [THREAD-MODEL] [MULTI-CONN]: sets `held_storage` to nbdkit's arguments for a disk of
# 4 MiB in FOLDER/image. The write that finds the file `hold` there removes it, waits for a line in the
# pipe `release`, and makes the file `landed` when it has ended. A write is one system call, so that those
# on their way together are not mixed.
held_storage() {
  [[ -p $1/release ]] || mkfifo "$1/release"
  truncate -s 4M "$1/image"
  # shellcheck disable=SC2034 # for who calls
  held_storage=(-t 16 eval "thread_model=echo ${2:-parallel}"
    get_size='echo 4194304' can_write='exit 0' can_flush='exit 0' can_fua='echo native'
    can_multi_conn="exit ${3:-0}" flush='exit 0'
    pread="dd if=$1/image skip=\$4 count=\$3 iflag=count_bytes,skip_bytes status=none"
    pwrite="t=\$(mktemp -p $1); cat >\$t
      held=; if mv $1/hold $1/held 2>/dev/null; then read held <$1/release; fi
      dd if=\$t of=$1/image bs=64K seek=\$4 oflag=seek_bytes conv=notrunc status=none; rm \$t
      if [ -n \"\$held\" ]; then : >$1/landed; fi")
}
