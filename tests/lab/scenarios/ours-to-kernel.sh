# shellcheck shell=bash
# Our plugin with Linux's RNBD server.
# SPDX-License-Identifier: BSD-3-Clause

# serve_and_attach [PARAMETER=VALUE...]: the server's module parameters.
serve_and_attach() {
  on server ramdisk_for_load
  on server kernel_server "$@"
  on client attach -t 32 -- rnbd://10.99.0.1/dev/ram0
  on client nbd_device
}

verify() {
  serve_and_attach "$@"
  on client fio_verify /dev/nbd0 --fsync=16
  same_data /dev/nbd0 /dev/ram0
}

# Linux keeps 4 KiB of each chunk for headers. Most writes are larger than a chunk of the default size.
large_chunks() {
  on server ramdisk_for_load
  on server kernel_server always_invalidate=Y sess_queue_depth=128 max_chunk_size=262144
  on client attach_bridge rnbd://10.99.0.1/dev/ram0
  on client nbd_device
  says rnbd-bridge.log 'is up: 128 requests of 258048 bytes'
  on client fio_verify /dev/nbd0 --bssplit=4k/25:252k/50:1m/25
  same_data /dev/nbd0 /dev/ram0
}

# A number of chunks that is no power of two, and more than Linux's default.
deep_queue() {
  on server ramdisk_for_load
  on server kernel_server sess_queue_depth=1000 "$1"
  on client attach_bridge rnbd://10.99.0.1/dev/ram0 --lanes 1
  on client thousand_writes
  says rnbd-bridge.log 'is up: 1000 requests'
}
# At a time, as far as NBD's client is concerned.
thousand_writes() {
  nbdsh -u "$nbd_uri" -c '
def data(n):
    return n.to_bytes(4, "little") * 1024
writes = [h.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(data(n))), n * 4096) for n in range(1000)]
while h.aio_in_flight():
    h.poll(-1)
assert all(h.aio_command_completed(write) for write in writes)
for n in range(1000):
    assert h.pread(4096, n * 4096) == data(n), n
'
}

fua_and_odd_requests() {
  serve_and_attach
  on client qemu-io -t writeback -f raw -c 'write -P 0x11 0 256k' -c 'write -f -P 0x22 512 512' \
    -c 'write -P 0x33 4000 100' -c flush -c 'write -z 64k 64k' -c 'read -P 0x22 512 512' \
    -c 'read -P 0x33 4000 100' -c 'read -P 0x11 4100 1000' -c 'read -P 0 64k 64k' \
    -c 'read -P 0x11 128k 128k' 'nbd+unix:///?socket=/run/nbd.sock'
  same_data /dev/nbd0 /dev/ram0
}

cached_disk() { # [FUAMODE]
  start_logged_storage "$@"
  nbd_device /run/storage.sock
  [[ $(</sys/block/nbd0/queue/write_cache) == 'write back' ]]
}

ask() { nbdsh -u "$nbd_uri" -c "h.$1"; }
# asked_is REQUEST WHAT: the call of nbdsh's is that for the disk.
asked_is() { arrives_as "$2" ask "$1"; }

durable() {
  local write='Write offset=0x10000 count=0x1000'
  on server cached_disk pass
  on server kernel_server always_invalidate=N
  on client attach rnbd://10.99.0.1/dev/nbd0
  asked_is 'pwrite(b"x" * 4096, 65536)' "$write fua=0"
  asked_is 'pwrite(b"x" * 4096, 65536, nbd.CMD_FLAG_FUA)' "$write fua=1"
  asked_is 'flush()' Flush
}

# What nbdkit makes a write and a flush of. Linux's server makes two of a flush that has FUA as well, as Linux's
# client and ours send it.
durable_without_fua() {
  local write='Write offset=0x10000 count=0x1000 fua=0' flushes=$'Flush\nFlush'
  on server cached_disk
  on server kernel_server always_invalidate=N
  on client attach rnbd://10.99.0.1/dev/nbd0
  asked_is 'pwrite(b"x" * 4096, 65536)' "$write"
  asked_is 'pwrite(b"x" * 4096, 65536, nbd.CMD_FLAG_FUA)' "$write"$'\n'"$flushes"
  asked_is 'flush()' "$flushes"
}

# A loop device can discard and zero, and then less of its file is allocated. Linux's server has no zeroes for its
# clients in 6.1, and has in 6.12.
loop_device() {
  truncate -s 64M /tmp/disk
  modprobe loop
  losetup /dev/loop0 /tmp/disk
}
allocated() { sync -f /tmp/disk && stat -c %b /tmp/disk; }

# frees MIB COMMAND...: so much is no longer allocated after these commands of qemu-io.
frees() {
  local mib=$1 before less commands=()
  shift
  for command in "$@"; do commands+=(-c "$command"); done
  before=$(on server allocated)
  on client qemu-io -d unmap -f raw "${commands[@]}" 'nbd+unix:///?socket=/run/nbd.sock'
  less=$((before - $(on server allocated)))
  ((less == mib * 2048)) || fail "$less blocks were freed, and not $mib MiB, by: $*"
}

# Zeroes that must stay allocated go as data: Linux's server would ignore that wish.
discard() {
  local zeroed=1
  on server loop_device
  on server kernel_server
  [[ $(on server uname -r) != 6.1.* ]] || zeroed=0
  on client attach rnbd://10.99.0.1/dev/loop0 discard=on write-zeroes=on
  frees -8 'write -P 0x44 0 8M'
  frees 4 'discard 0 4M'
  frees "$zeroed" 'write -z -u 4M 1M'
  frees 0 'write -z 5M 1M'
  frees 0 'read -P 0 0 6M' 'read -P 0x44 6M 2M'
}

access_modes() {
  on server ramdisk_for_load
  on server kernel_server
  on client attach rnbd://10.99.0.1/dev/ram0 access=ro
  on client qemu-io -r -f raw -c 'read -P 0 0 64k' 'nbd+unix:///?socket=/run/nbd.sock'
  fails on client qemu-io -f raw -c 'write -P 1 0 64k' 'nbd+unix:///?socket=/run/nbd.sock'
  on client stop nbdkit
  on client attach rnbd://10.99.0.1/dev/ram0 access=migration
  on client qemu-io -f raw -c 'write -P 1 0 64k' -c 'read -P 1 0 64k' 'nbd+unix:///?socket=/run/nbd.sock'
}

migration() {
  local device
  on server ramdisk_for_load
  on server kernel_server
  on client attach rnbd://10.99.0.1/dev/ram0 access=migration
  on client nbd_device
  device=$(on client kernel_map moves dev/ram0 ip:10.99.0.2@ip:10.99.0.1 access_mode=migration)
  on client write_block /dev/nbd0 0 O
  on client block_is "$device" 0 O
  on client write_block "$device" 0 L
  on client block_is /dev/nbd0 0 L
  fails on client kernel_map third dev/ram0 ip:10.99.0.2@ip:10.99.0.1 access_mode=migration
  on client kernel_unmap "$device"
  on client write_block /dev/nbd0 0 N
  on client block_is /dev/nbd0 0 N
}

uses_both() { sent_more 0 1000000 && sent_more 1 1000000; }

# Changes that were on their way over a path wait until it is back.
two_paths() {
  local load first='10.99.0.1:1234' second='10.99.1.1:1234'
  on server ramdisk_for_load
  on server kernel_server always_invalidate=N
  on client attach -t 32 -- rnbd://10.99.0.1/dev/ram0 path=rdma:10.99.1.1 policy=round-robin
  on client nbd_device
  limit=500 on client verify_until enough /dev/nbd0 & load=$!
  on client eventually 100 writes_reach /dev/nbd0 100
  on client eventually 20 uses_both
  pull server 0
  on client eventually 20 goes_over "$second"
  plug server 0
  on client eventually 60 goes_over "$first, $second"
  touch enough
  wait "$load"
  same_data /dev/nbd0 /dev/ram0
}

serve_ours() { rnbd_server --listen rdma:10.99.0.1:1234 --export a=memory:16M; }
reconnects() { cat /sys/class/rtrs-client/*/paths/*/stats/reconnects; }

idle() {
  local device before
  on server ramdisk_for_load
  on server kernel_server port_nr=2001
  on server serve_ours
  on client attach rnbd://10.99.0.1:2001/dev/ram0
  on client nbd_device
  device=$(on client kernel_map idle a ip:10.99.0.2@ip:10.99.0.1)
  on client qemu-io -f raw -c 'write -P 0x66 0 64k' /dev/nbd0
  on client qemu-io -f raw -c 'write -P 0x77 0 64k' "$device"
  before=$(on client reconnects)
  limit=400 on client sleep 300
  on client qemu-io -f raw -r -c 'read -P 0x66 0 64k' /dev/nbd0
  on client qemu-io -f raw -r -c 'read -P 0x77 0 64k' "$device"
  [[ $(on client reconnects) == "$before" ]] || fail "Linux's client had to connect again"
  ! on client nbdkit_says 'is lost' || fail "our plugin had to connect again"
}

# Without always_invalidate: what despite_rxe looks for would say nothing where sessions are to end.
reload_server() {
  modprobe -r rnbd_server rtrs_server
  kernel_server always_invalidate=N
}
reload() {
  local load
  serve_and_attach always_invalidate=N
  limit=300 on client verify_until enough /dev/nbd0 & load=$!
  on client eventually 100 writes_reach /dev/nbd0 100
  on server reload_server
  touch enough
  wait "$load"
  says nbdkit.log 'path to 10.99.0.1:1234 is lost'
  same_data /dev/nbd0 /dev/ram0
}

boot server client
it "fio's checksums hold, with always_invalidate" despite_rxe verify always_invalidate=Y
it_full "fio's checksums hold without it, with a queue depth of 16 and chunks of 64 KiB" verify \
  always_invalidate=N sess_queue_depth=16 max_chunk_size=65536
it_full "the same through rnbd-bridge with always_invalidate, a queue depth of 128 and chunks of 256 KiB" \
  despite_rxe large_chunks
it_full "what is written holds when the server's queue depth is 1000" deep_queue always_invalidate=N
it_full "the same with always_invalidate" despite_rxe deep_queue always_invalidate=Y
it "flush, FUA and requests of odd size do what they say" despite_rxe fua_and_odd_requests
it_full "what is to be durable reaches the server's disk as FUA, and a flush as a flush" durable
it_full "the same with a disk that has a cache and no FUA: as a write and a flush" durable_without_fua
it "discards free, zeroes that may free do where the server has them, and other zeroes do not" \
  despite_rxe discard
it_full "a device opened read-only cannot be written, one for migration can" despite_rxe access_modes
it_full "two clients have a device while it moves from one to the other, and no third" despite_rxe migration
it_full "one of two cables is pulled: no error, and it is used again when it is back" two_paths
it_full "a session survives five idle minutes, and so does one of Linux with our server" idle
it "the server's module is reloaded under load, which goes on with the new one" reload
finish
