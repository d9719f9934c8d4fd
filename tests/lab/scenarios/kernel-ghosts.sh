# shellcheck shell=bash
# The kernel sends a write again that the storage still holds: the newer write stays.
# SPDX-License-Identifier: BSD-3-Clause

# shellcheck source=/dev/null
source "$lab_dir/lib/kernel_disk.sh"

# serve_held: storage that holds a write for some seconds, more where programs take longer to start.
serve_held() {
  make_disk
  serve_disk "delay:hold-file=/tmp/hold,hold=$(awk "BEGIN { printf \"%d\", 10 + 10 * $(time_to_start) }")s:/tmp/disk"
}

# ---- One write and a newer one -----------------------------------------------------------------------------

# held_write: A goes to block 5 and is held; `first` is its job.
held_write() {
  touch /tmp/hold
  write_block /dev/nbd0 5 A & first=$!
  eventually 60 is_held
}
is_held() { [[ ! -e /tmp/hold ]]; }
a_is_answered() { ! kill -0 "$first" 2>/dev/null; }
has_landed() { block_is /tmp/disk 5 A; }

# newer_write_stays: whoever answers A before it has ended everywhere lets it land on B.
newer_write_stays() {
  local early=
  ! has_landed || fail "A has landed already, so nothing was shown"
  if a_is_answered; then
    early=1
    write_block /dev/nbd0 5 B
  fi
  eventually 120 has_landed
  wait "$first"
  [[ -n $early ]] || write_block /dev/nbd0 5 B
  block_is /dev/nbd0 5 B || fail "B is lost"
  block_is /tmp/disk 5 B || fail "B is lost at the server"
  [[ -z $early ]] || fail "A was answered while it was held"
}
another_block_works() {
  write_block /dev/nbd0 6 "$1"
  block_is /dev/nbd0 6 "$1"
}
block_of_zeroes_is_read() { cmp <(dd if=/dev/nbd0 bs=64k skip=6 count=1 iflag=direct status=none) <(head -c 64k /dev/zero); }
says_stuck() { (($(dmesg | grep -c 'Possible stuck request') >= $1)); }
dmesg_has() { dmesg | grep -E "$1"; }

# ---- The ways to a ghost -----------------------------------------------------------------------------------

# The next bridge gets the disk when what its predecessor has begun has ended.
bridge_killed() {
  serve_held
  map one
  held_write
  killed one
  begin_map one
  eventually 60 grep -q 'waits for its server' one.log
  newer_write_stays
  eventually 60 ready_or_ended one
  stop one
}

# It hands over what it can, which is not this write.
bridge_replaced() {
  serve_held
  begin_with_store
  held_write
  kill -HUP "$(</run/store.pid)"
  eventually 60 grep -q 'the successor brings another socket' store.log
  eventually 60 grep -q 'waits for its server' store.log
  newer_write_stays
  eventually 60 test -s /run/one.pid
  end_with_store
}

nothing_ended() {
  serve_held
  map one
  dmesg --clear
  held_write
  eventually 60 says_stuck 2
  another_block_works C
  newer_write_stays
  no_line 'reconnected|I/O error'
  stop one
}

# Another client of the bridge gives the kernel a time limit, with which it ends what is slow.
kernel_ends_connections() { # CONNECTIONS
  serve_held
  background bridge "$build_dir/bin/rnbd-bridge" --listen unix:/run/bridge.sock --pid-file /run/bridge.pid rnbd+tcp://127.0.0.1/disk0
  eventually 60 ready_or_ended bridge
  modprobe nbd
  background resender "$source_dir/tests/lab/lib/resender" /run/bridge.sock "$1" 3 /run/resender.pid
  eventually 60 ready_or_ended resender
  held_write
  eventually 60 dmesg_has 'Connection timed out'
  # With its last connection the bridge closes the disk, and opens it again when the held write has ended.
  if (($1 > 1)); then
    eventually 60 grep -q 'another connection' resender.log
    block_of_zeroes_is_read # changes of the disk wait behind the held one, reads do not
  fi
  newer_write_stays
  grep -q 'another connection' resender.log
  nbd-client -d /dev/nbd0
  stop bridge
}

[[ -z ${FULL:-} ]] || limit=900
boot host
it "a bridge that is killed with a write under way leaves no ghost of it" on host bridge_killed
it_full "nor does one that is replaced" on host bridge_replaced
it_full "nor a kernel that waits" on host nothing_ended
it_full "nor one that ends one of two connections and sends it again" on host kernel_ends_connections 2
it_full "nor one that ends the only connection" on host kernel_ends_connections 1
finish
