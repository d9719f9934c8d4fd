# shellcheck shell=bash
# Linux's client stands still, or dies: our server is rid of it, and nothing of it comes later.
# SPDX-License-Identifier: BSD-3-Clause

# Linux's heartbeats, and 5 s more; see docs/reliability.md, what is promised.
noticed=40

# Room for one session, in number and in memory. The other client is on the server's machine.
serve() {
  rnbd_server --listen rdma:10.99.0.1:1234 --listen tcp:127.0.0.1:1234 --control /run/rnbd-server.sock \
    --max-sessions 1 --queue-depth 64 --memory-limit 20M --handshake-timeout 60s --export a=memory:16M
  attach rnbd+tcp://127.0.0.1/a
}
map() { kernel_map k a ip:10.99.0.2@ip:10.99.0.1; }

# holds SESSION: it has the room, and the device for writing. holds_nothing: nobody does.
status() { "$build_dir/bin/rnbd-ctl" --json /run/rnbd-server.sock status; }
holds() { [[ $(status) == *'"memory":17'*"\"session\":\"$1\",\"device\":\"a\",\"access_mode\":\"rw\""* ]]; }
holds_nothing() { [[ $(status) == *'"memory":0,'*'"sessions":[],"paths":[],"devices":[]}' ]]; }

# other_writes PLACE LETTER / other_reads PLACE LETTER: 64 KiB through our plugin.
other() { nbdsh -u "$nbd_uri" -c "$1"; }
other_writes() { other "h.pwrite(b'$2' * 65536, $1 * 65536, nbd.CMD_FLAG_FUA)"; }
other_reads() { other "assert h.pread(65536, $1 * 65536) == b'$2' * 65536, 'block $1 is not $2'"; }

use() {
  on server serve
  [[ -z ${FULL:-} ]] || remember
  device=$(on client map)
  on client write_block "$device" 0 K
  on server holds k
  fails on server other_writes 0 O
}
# remember: what the server's program holds when all is well, after a first client, because some of it is used again.
remember() {
  on client kernel_unmap "$(on client map)"
  on server eventually 20 holds_nothing
  on server remember_held rnbd-server
}
# is_forgotten: and the other client has the device, with what had been answered.
is_forgotten() {
  local began=$EPOCHREALTIME
  on server eventually "$noticed" holds_nothing
  awk -v a="$began" -v b="$EPOCHREALTIME" 'BEGIN { printf "forgotten after %.1f s\n", b - a }'
  [[ -z ${FULL:-} ]] || on server holds_no_more rnbd-server
  on server other_reads 0 K
  on server other_writes 0 O
  on server other_writes 1 O
}
# comes_back: when the other client has left.
comes_back() {
  on server stop nbdkit
  "$@"
  on client block_is "$device" 0 O
  on client block_is "$device" 1 O
  on client write_block "$device" 1 K
  on client block_is "$device" 1 K
}

under_way() { [[ $(awk '{ print $2 }' "/sys/block/${1##*/}/inflight") == "$2" ]]; }

# write_late DEVICE: A leaves the machine 10 s later, of its own time, which a pause stops. Its end is A's.
write_late() {
  local write
  weather delay 10s
  write_block "$1" 1 A & write=$!
  eventually 20 under_way "$1" 1
  touch late
  wait "$write"
}

# A has left the client, but not its machine, when that stands still.
stands_still() {
  local device first before
  use
  before=$(on client sent 0)
  on client write_late "$device" & first=$!
  eventually 60 test -e late
  pause client
  is_forgotten
  resume client
  on client eventually 20 sent_more 0 $((before + 65536))
  on server other_reads 1 O
  if wait "$first"; then fail "A was answered, though nobody can have carried it out"; fi
  on server other_reads 1 O
  [[ -z ${FULL:-} ]] || comes_back reconnects
}
# It tries again every 30 seconds.
reconnects() {
  on client weather
  limit=240 on client eventually 100 path_is k 10.99.0.1 connected
  on client kernel_remap "$device"
}

write_for_ever() { while write_block "$1" 1 A; do touch writes; done; }
dies() {
  local device load
  use
  on client write_for_ever "$device" & load=$!
  on client eventually 20 test -e writes
  cut_power client
  kill "$load" # nothing will ever answer it
  is_forgotten
  power_on client
  fails on client map
  comes_back maps_again
}
maps_again() { device=$(on client map); }

boot server client
it "Linux's client stands still: session, access and memory are free, and what it had sent does not come later" \
  stands_still
it_full "its machine dies: they are free" dies
finish
