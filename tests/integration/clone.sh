#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# A server and its clone, made from one image of a file system: they have one identity, and their disks
# have one UUID. A client of the first one must not go on at the second one. A server that was started
# again, rebooted or moved is the same one.
source "${BASH_SOURCE[0]%/*}/lib.sh"

# ---- Helpers --------------------------------------------------------------------------------------

# make_host: the file system of `first`, with a disk. `clone_host` copies it, perhaps while it is in use.
make_host() {
  ((EUID == 0)) || skip "only root can mount a file system"
  truncate -s 40M first.fs
  mkfs.ext4 -q -F first.fs
  mount_host first first.fs
  truncate -s 1M first/disk0.img
  mkdir first/disks
  truncate -s 1M first/disks/disk0
}
mount_host() {
  mkdir "$1"
  mount -o loop "$2" "$1" 2>/dev/null || skip "no loop mounts here"
  at_end umount "$PWD/$1"
}
clone_host() {
  fsfreeze --freeze first
  cp first.fs second.fs
  fsfreeze --unfreeze first
  mount_host second second.fs
}

# serve NAME [COMMAND...]: the server on that host, at the address that it had before, in $NAME_address.
# With the command in front of it. With $searches it serves files of a search path.
serve() {
  local -n its_address=$1_address
  local server_command=("${@:2}" "${server_command[@]}")
  its_address=${its_address-}
  local disks=(--export "disk0=$PWD/$1/disk0.img")
  [[ -z ${searches-} ]] || disks=(--search-path "$PWD/$1/disks")
  server_port=${its_address##*:} server_name=$1 start_server "${disks[@]}" --state-directory "$PWD/$1/state"
  # shellcheck disable=SC2034 # the caller's
  its_address=$address
}
attach_to_disk() {
  attach_to "rnbd+tcp://$1/disk0" "control=$PWD/control" reconnect-min=20ms reconnect-max=100ms \
    no-path-timeout=1s "${@:2}"
}
ctl() { limited "${ctl_command[@]}" "$@"; }
# put LETTER, expect LETTER: the first block of the disk, durably; in a connection of its own.
put() { nbdsh <<<"h.pwrite(b'$1' * 4096, 0); h.flush()"; }
expect() { nbdsh <<<"assert h.pread(4096, 0) == b'$1' * 4096, h.pread(1, 0)"; }
reads() { expect "$1" 2>/dev/null; }
# hold LETTER [write]: an NBD client that stays. It has read the letter, or has written it durably. It
# reads again for each line that it is sent, and says what it got.
hold() {
  mkfifo ask
  cat >holder.py <<'PYTHON'
import sys, nbd
uri, letter, write = sys.argv[1], sys.argv[2].encode(), len(sys.argv) > 3
h = nbd.NBD()
h.connect_uri(uri)
if write:
    h.pwrite(letter * 4096, 0)
    h.flush()
for line in [""] + [None] * 100:
    if line is None and sys.stdin.readline() != "read\n":
        break
    try:
        print("read", h.pread(1, 0).replace(b"\0", b"zeros").decode(), flush=True)
    except nbd.Error as error:
        print("error", error.errno, flush=True)
PYTHON
  spawn holder sh -c 'exec /usr/bin/python3 holder.py "$@" <ask' sh "$uri" "$@"
  exec {ask}>ask
  wait_for_line holder.out "^read $1"
}
# asks WHAT: what the holder is told now.
asks() {
  local before
  before=$(wc -l <holder.out)
  echo read >&"$ask"
  eventually 20 line_after "$before"
  [[ $(tail -n 1 holder.out) == "$1" ]]
}
line_after() { (($(wc -l <holder.out) > $1)); }
let_go() {
  echo leave >&"$ask"
  exec {ask}>&-
  wait_end holder 20 || fail "the NBD client does not leave"
}

# ---- A clone ----------------------------------------------------------------------------------------

# The clone has never had a client.
prepare_template() {
  make_host
  serve first
  stop first
  clone_host
  serve first
  serve second
}

refused_before() {
  prepare_template
  attach_to_disk "$first_address" "path=$second_address"
  hold R write
  eventually 20 grep -q "path to $second_address leads to another server, perhaps a clone" nbdkit.log
  kill_hard first
  asks 'error EIO' || fail "not refused: $(tail -n 1 holder.out)"
  ! grep "opened 'disk0'" second.log || fail "the disk of the clone was opened"
  says <(ctl "$PWD/control" status) 'another server, perhaps a clone'
  serve first
  eventually 20 asks 'read R'
  let_go
  stop nbdkit
}
it "a path that was refused while the server lived is not used when the server has died" refused_before

named_later() {
  prepare_template
  attach_to_disk "$first_address"
  hold R write
  kill_hard first
  ctl "$PWD/control" add-path "$second_address"
  asks 'error EIO' || fail "not refused: $(tail -n 1 holder.out)"
  wait_for_line nbdkit.log "path to $second_address: .*its records are older than this session"
  serve first
  eventually 20 asks 'read R'
  let_go
  stop nbdkit
}
it "a clone that the client learns of when its server has died is refused by its records" named_later

# The clone's next reservation has the number that the client has at the first one.
older_by_one() {
  make_host
  serve first
  attach_to_disk "$first_address"
  put A
  stop nbdkit
  clone_host
  serve second
  attach_to_disk "$first_address"
  hold R "$@"
  kill_hard first
  ctl "$PWD/control" add-path "$second_address"
  asks 'error EIO' || fail "not refused: $(tail -n 1 holder.out)"
  asks 'error EIO' || fail "not refused again: $(tail -n 1 holder.out)"
  serve first
  eventually 20 asks 'read R'
  let_go
  stop nbdkit
}
it "a clone of a server that was in use is refused, since it lacks the newest reservation" older_by_one write

reader() {
  make_host
  serve first
  stop first # a server in a new state directory says nothing to readers
  serve first
  attach_to_disk "$first_address"
  put A
  stop nbdkit
  clone_host
  serve second
  attach_to_disk "$first_address"
  put R
  stop nbdkit
  attach_to_disk "$first_address" "$@"
  hold R
  kill_hard first
  ctl "$PWD/control" add-path "$second_address"
  asks 'error EIO' || fail "not refused: $(tail -n 1 holder.out)"
  serve first
  eventually 20 asks 'read R'
  let_go
  stop nbdkit
}
it "who only reads does not go on at a clone that is older than what it has read" reader

reader_of_file() {
  local searches=yes
  reader access=ro
}
it "nor does who has opened a file of the search path for reading" reader_of_file

ordered() {
  prepare_template
  attach_to_disk "$first_address" "path=$second_address"
  hold R write
  eventually 20 grep -q "path to $second_address leads to another server, perhaps a clone" nbdkit.log
  kill_hard first
  asks 'error EIO' || fail "not refused: $(tail -n 1 holder.out)"
  ctl "$PWD/control" reconnect "$second_address"
  eventually 20 grep -q "'disk0': the server's record of its writers is older" nbdkit.log
  asks 'error EIO' || fail "not refused by the records: $(tail -n 1 holder.out)"
  ctl "$PWD/control" reconnect "$second_address"
  asks 'error EIO' || fail "it has lost its disk, and got: $(tail -n 1 holder.out)"
  let_go
  eventually 20 reads '\0'
  stop nbdkit
}
it "told to go on at the clone, a client loses what it had open, and may open it anew" ordered

# ---- The same server --------------------------------------------------------------------------------

restarted() {
  make_host
  serve first
  attach_to_disk "$first_address"
  hold R write
  kill_hard first
  serve first
  asks 'read R' || fail "lost by a restart: $(tail -n 1 holder.out)"
  echo 11111111-2222-3333-4444-555555555555 >boot
  kill_hard first
  # shellcheck disable=SC2016 # the inner shell's
  serve first unshare -m sh -c 'mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"' "$PWD/boot"
  asks 'read R' || fail "lost by a reboot: $(tail -n 1 holder.out)"
  let_go
  stop nbdkit
  ! grep -E 'another place' first.log || fail "a reboot is taken for another place"
}
it "a server that was started again, or rebooted, is the same one" restarted

moved() {
  make_host
  serve first
  attach_to_disk "$first_address"
  hold R write
  stop first
  umount first
  mount_host second first.fs
  serve second
  ctl "$PWD/control" add-path "$second_address"
  eventually 20 asks 'read R'
  let_go
  stop nbdkit
}
it "a server whose disk and state directory were moved is the same one" moved

# ---- The place of a server ----------------------------------------------------------------------------

id_of() { head -n 1 "$1/state/server-id"; }
# serve_at MACHINE: `second`, on a machine with that /etc/machine-id.
serve_at() {
  echo "$1" >machine-id
  # shellcheck disable=SC2016 # the inner shell's
  serve second unshare -m sh -c 'mount --bind "$0" /etc/machine-id && exec "$@"' "$PWD/machine-id"
}
elsewhere() {
  local id
  [[ -s /etc/machine-id ]] || skip "this machine has no machine-id"
  make_host
  serve first
  id=$(id_of first)
  attach_to_disk "$first_address"
  hold R write
  clone_host
  serve_at 0123456789abcdef0123456789abcdef
  says second.log "state directory is from another place: its /etc/machine-id was .*no longer $id"
  [[ $(id_of second) != "$id" ]] || fail "the clone has the identity of the first one"
  kill_hard first
  ctl "$PWD/control" add-path "$second_address"
  wait_for_line nbdkit.log "path to $second_address: .*leads to another server than the session's"
  asks 'error EIO' || fail "not refused: $(tail -n 1 holder.out)"
  stop second
  echo "$id" >second/state/server-id
  serve_at 0123456789abcdef0123456789abcdef
  ! grep 'another place' second.log || fail "its operator has told that it is the same"
  eventually 20 asks 'read R'
  let_go
  stop nbdkit
}
it "a state directory on another machine has a new identity, until its operator gives it the old one" elsewhere

anywhere() {
  local id
  make_host
  serve first
  id=$(id_of first)
  echo any >first/state/server-place
  stop first
  umount first
  mount_host second first.fs
  serve_at fedcba9876543210fedcba9876543210
  [[ $(id_of second) == "$id" ]] || fail "it has another identity"
}
it "servers that take turns with a state directory keep their identity when they are told to" anywhere

# The directory in the way of the draft stands for a disk without room.
unrecorded() {
  local id
  ((EUID == 0)) || skip "only root can have another machine-id"
  [[ -s /etc/machine-id ]] || skip "this machine has no machine-id"
  mkdir -p first/state/server-place.new
  truncate -s 1M first/disk0.img
  serve first
  says first.log 'cannot record the place of this server'
  ! grep 'cannot keep the identity' first.log || fail "its identity is thrown away"
  stop first
  rmdir first/state/server-place.new
  serve first
  stop first
  id=$(id_of first)
  cp -r first second
  mkdir second/state/server-place.new
  serve_at fedcba9876543210fedcba9876543210
  says second.log 'cannot keep the identity of this server'
  [[ $(id_of second) == "$id" ]] || fail "each start takes another identity"
}
it "a server that cannot record its place keeps its identity, and a clone of it takes none of its own" unrecorded

finish
