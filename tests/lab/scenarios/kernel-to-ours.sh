# shellcheck shell=bash
# Linux's RNBD client with our server.
# SPDX-License-Identifier: BSD-3-Clause

# An emulated guest may take more than the usual 10 s to make 161 connections.
serve() { # [OPTION...]
  truncate -s "${disk_mib}M" /tmp/a
  truncate -s "${disk_mib}M" /tmp/b
  rnbd_server --listen rdma:10.99.0.1:1234 --listen rdma:10.99.1.1:1234 \
    --export a=/tmp/a --export b=/tmp/b --handshake-timeout 60s "$@"
}
first_path=ip:10.99.0.2@ip:10.99.0.1
second_path=ip:10.99.1.2@ip:10.99.1.1

serve_and_map() {
  on server serve
  device=$(on client kernel_map k a "$first_path")
  [[ $device == /dev/rnbd* ]]
}

# Linux waits 30 s for the answer to its disconnection request, and then goes on as if nothing were wrong. The bound tells
# that from an answer; it says nothing of how fast a guest is.
unmap_in_time() {
  local began=$SECONDS
  kernel_unmap "$1"
  echo "unmapped after $((SECONDS - began)) s"
  ((SECONDS - began <= 20)) || fail "the server has not answered Linux's disconnection request (DREQ): it waited for that"
}

verify() {
  serve_and_map
  says rnbd-server.log "connected with $connections connections"
  on client fio_verify "$device" --fsync=16
  on client fio_verify "$device" --rw=write --bssplit=1m/100 --iodepth=4
  same_data "$device" /tmp/a
  on client unmap_in_time "$device"
  on server stop rnbd-server
}

# Every chunk has a window of its own, which is bound anew for each request.
new_keys() {
  on server serve --always-invalidate
  device=$(on client kernel_map k a "$first_path" "$second_path")
  on client fio_verify "$device" --fsync=16
  same_data "$device" /tmp/a
  on client kernel_unmap "$device"
  on server stop rnbd-server
}

# Cable 0 only: both clients, each with an export of its own.
ipv6() {
  on server rnbd_server --listen 'rdma:[fd99::0:1]:1234' --export a=memory:16M --export b=memory:16M
  device=$(on client kernel_map k a ip:fd99::0:2@ip:fd99::0:1)
  on client attach 'rnbd://[fd99::0:1]:1234/b'
  on client nbd_device
  on client write_block "$device" 3 K
  on client write_block /dev/nbd0 3 O
  on client block_is "$device" 3 K
  on client block_is /dev/nbd0 3 O
}

use_file_system() {
  mkfs.ext4 -q "$1"
  mkdir -p /tmp/mnt
  mount "$1" /tmp/mnt
  cp -r "$source_dir/rdma" /tmp/mnt/
  head -c 8M /dev/urandom >/tmp/mnt/random
  (cd /tmp/mnt && find . -type f -exec md5sum {} +) >/tmp/sums
  umount /tmp/mnt
  e2fsck -f -n "$1"
  mount "$1" /tmp/mnt
  (cd /tmp/mnt && md5sum --quiet -c /tmp/sums)
  umount /tmp/mnt
  blkdiscard -o 16M -l 8M "$1"
  cmp -n 8M -i 16M:0 "$1" /dev/zero
}

file_system() {
  serve_and_map
  on client use_file_system "$device"
  on client kernel_unmap "$device"
  device=$(on client kernel_map k a "$first_path" access_mode=ro)
  fails on client dd if=/dev/zero of="$device" bs=4k count=1 oflag=direct
}

# Linux's client does not see a failure that comes before it has ended a memory registration, and soft-RoCE may
# forget to end one until the same queue pair gets more to do, see docs/operations.md. Such a write has no end
# before the next request of its CPU, and then it succeeds: few may.
failing_storage() {
  on server rnbd_server --listen rdma:10.99.0.1:1234 --export a=fault:write-eio=1:memory:16M
  device=$(on client kernel_map k a "$first_path")
  on client all_writes_fail "$device" 4096
  on client all_writes_fail "$device" 65536
  on client block_is "$device" 0 '\0'
}
all_writes_fail() { # DEVICE BYTES
  python3 -c '
import errno, mmap, os, sys, threading, time
device, size = os.open(sys.argv[1], os.O_RDWR | os.O_DIRECT), int(sys.argv[2])
data, other = mmap.mmap(-1, size), mmap.mmap(-1, size)
data.write(b"x" * size)
os.sched_setaffinity(0, {2})  # and its threads: one CPU, one queue pair
started, woken = time.monotonic(), []
def wake():
    while True:
        time.sleep(1)
        if time.monotonic() - started > 10 and (not woken or woken[-1] != n):
            woken.append(n)
            os.preadv(device, [other], 0)
n = 0
threading.Thread(target=wake, daemon=True).start()
for n in range(200):
    started = time.monotonic()
    try:
        os.pwrite(device, data, n * size)
    except OSError as error:
        assert error.errno == errno.EIO, error
    else:
        if n not in woken:
            sys.exit(f"write {n} of {size} bytes succeeded")
if woken:
    print("soft-RoCE forgot the registrations of the writes", woken)
if len(woken) > 5:
    sys.exit("more than that cannot be its mistake")' "$@"
}

serve_logged() { # [FUAMODE]
  start_logged_storage "$@"
  rnbd_server --listen rdma:10.99.0.1:1234 --export 'a=nbd+unix:///?socket=/run/storage.sock'
}
# write_4k DEVICE [DD-OPTION...]: past the cache.
write_4k() { dd if=/dev/zero of="$1" bs=4k seek=16 count=1 oflag=direct conv=notrunc status=none "${@:2}"; }

# Linux sends a write with FUA only if OPEN has told of a cache. A program's O_DSYNC is that, and a flush.
durable() {
  local write='Write offset=0x10000 count=0x1000'
  on server serve_logged pass
  device=$(on client kernel_map k a "$first_path")
  [[ $(on client cat "/sys/block/${device##*/}/queue/write_cache") == 'write back' ]]
  arrives_as "$write fua=0" write_4k "$device"
  arrives_as "$write fua=0"$'\nFlush' write_4k "$device" conv=fsync
  arrives_as "$write fua=1"$'\nFlush' write_4k "$device" oflag=dsync
}

# Where the storage has no FUA, our server makes a flush of it.
durable_without_fua() {
  local write='Write offset=0x10000 count=0x1000 fua=0'
  on server serve_logged
  device=$(on client kernel_map k a "$first_path")
  arrives_as "$write" write_4k "$device"
  arrives_as "$write"$'\nFlush' write_4k "$device" conv=fsync
  arrives_as "$write"$'\nFlush\nFlush' write_4k "$device" oflag=dsync
}

# /tmp/fail: the next fdatasync(2) of the server removes it, and fails; see tests/integration/failing_flush.cpp.
serve_failing_flush() {
  truncate -s 16M /tmp/a
  LD_PRELOAD=$build_dir/tests/integration/libfailing_flush.so RNBD_FAIL_FLUSH=/tmp/fail \
    rnbd_server --listen rdma:10.99.0.1:1234 --export a=/tmp/a --no-uring
}
fsync_fails() {
  fails on client write_4k "$device" conv=fsync
  says fails.out 'fsync failed.*Input/output error'
}

failing_flush() {
  ! grep -qs '^RNBDKIT_SANITIZE:.*=.' "$build_dir/CMakeCache.txt" || skip "a sanitizer wants to be the first library"
  on server serve_failing_flush
  device=$(on client kernel_map k a "$first_path")
  on client write_4k "$device" conv=fsync
  on server touch /tmp/fail
  on client write_4k "$device"
  on server test -e /tmp/fail # nobody has asked for a flush
  fsync_fails
  on server test ! -e /tmp/fail
  fsync_fails # whatever the next fdatasync says
}

two_devices() {
  local other
  serve_and_map
  other=$(on client kernel_map k b)
  on client fio_verify "$device" & load=$!
  on client fio_verify "$other"
  wait "$load"
  same_data "$device" /tmp/a
  same_data "$other" /tmp/b
}

unmap_under_load() {
  local other load
  serve_and_map
  other=$(on client kernel_map k b)
  on client verify_until never "$device" & load=$!
  on client eventually 100 writes_reach "$device" 100
  fails on client kernel_unmap "$device"
  on client kernel_unmap "$device" force
  if wait "$load"; then fail "the load did not notice that its device went away"; fi
  on client fio_verify "$other"
  same_data "$other" /tmp/b
  on client eventually 20 test ! -e "$device"
  device=$(on client kernel_map k a)
  on client fio_verify "$device"
  same_data "$device" /tmp/a
}

both_paths_are() { path_is k 10.99.0.1 "$1" && path_is k 10.99.1.1 "$1"; }

two_paths() {
  on server serve
  device=$(on client kernel_map k a "$first_path" "$second_path")
  on client both_paths_are connected
  kernel_survives_pulled_cable k "$device" /tmp/a
}

migration() {
  on server serve
  device=$(on client kernel_map k a "$first_path" access_mode=migration)
  on client attach rnbd://10.99.0.1/a access=migration
  on client nbd_device
  on client write_block "$device" 0 L
  on client block_is /dev/nbd0 0 L
  on client write_block /dev/nbd0 0 O
  on client block_is "$device" 0 O
  fails on client kernel_map third a "$first_path" access_mode=migration
  fails on client kernel_map fourth a "$first_path" access_mode=rw
  on client kernel_unmap "$device"
  on client write_block /dev/nbd0 0 N
  on client block_is /dev/nbd0 0 N
}

# A server that is told to stop answers what it has begun, and only then ends its connections. It
# leaves after 5 s whatever hangs.
is_writing() { [[ $(awk '{ print $2 }' "/sys/block/${1##*/}/inflight") -gt 0 ]]; }
# In one job of the guest, whose next may begin when the write has ended.
begin_write() {
  background write write_4k "$1"
  eventually 20 is_writing "$1"
}
is_being_written() {
  "$build_dir/bin/rnbd-ctl" /run/rnbd-server.control metrics | grep -qx "rnbd_export_inflight{export=\"$1\"} 1"
}
write_outlives_its_server() {
  on server rnbd_server --listen rdma:10.99.0.1:1234 --export a=delay:write=4s:memory:16M \
    --control /run/rnbd-server.control
  device=$(on client kernel_map k a "$first_path")
  on client begin_write "$device"
  on server eventually 20 is_being_written a
  on server stop rnbd-server
  on client ended_well write
}

restart() {
  serve_and_map
  on client fio_verify "$device"
  on server stop rnbd-server
  on client eventually 30 path_is k 10.99.0.1 disconnected
  on server serve
  # By itself it tries again every 30 seconds.
  [[ -n ${FULL:-} ]] || on client kernel_reconnect k 10.99.0.1
  limit=240 on client eventually 100 path_is k 10.99.0.1 connected
  on client kernel_remap "$device"
  on client fio_verify "$device"
  same_data "$device" /tmp/a
}

# It can prove nothing. Cable 1 leads to a listener that wants a proof.
serve_users() {
  "$build_dir/bin/rnbd-ctl" keygen host1 keys.psk
  rnbd_server --auth=psk --tls-psk "$PWD/keys.psk" \
    --listen rdma:10.99.0.1:1234,auth=none,from=10.99.0.0/24 --listen rdma:10.99.1.1:1234 \
    --export a=memory:16M,rw=@10.99.0.2 --export b=memory:16M,ro=@10.99.0.0/24 --export c=memory:16M,rw=host1
}
without_proof() {
  on server serve_users
  device=$(on client kernel_map k a "$first_path")
  on client write_block "$device" 3 K
  on client block_is "$device" 3 K
  says rnbd-server.log 'open ok peer=10.99.0.2:[0-9]+ identity="" session=k export=a access=rw'
  fails on client kernel_map k c "$first_path" access_mode=rw
  says fails.out 'No such file'
  says rnbd-server.log 'open refused peer=10.99.0.2:[0-9]+ identity="" session=k export=c access=rw why="not in rw or ro"'
  fails on client kernel_map k b "$first_path" access_mode=rw
  says fails.out 'Read-only file system'
  says rnbd-server.log 'open refused .* export=b access=rw why="not in rw"'
  fails on client kernel_map other a "$second_path"
  says fails.out 'Permission denied'
  says rnbd-server.log 'auth refused peer=10.99.1.2:[0-9]+ listener=rdma:10.99.1.1:1234 .* how=none'
  on client kernel_unmap "$device"
  on server stop rnbd-server
}

# Linux makes a connection for each CPU that there might be, and one more.
cpus=4 connections=5
[[ -z ${FULL:-} ]] || cpus=4,maxcpus=160 connections=161
boot server client
it "fio's checksums hold over $connections connections, and the file has what the client reads" despite_rxe verify
it "the same over two paths, with keys that end with each request" despite_rxe new_keys
it_full "ext4 is clean, a discarded range reads as zeroes, and a read-only device refuses writes" file_system
it_full "over IPv6, Linux's client and our plugin read what each has written" ipv6
it "what is to be durable reaches the server's storage as FUA, and a flush as a flush" durable
it_full "the same with storage that has no FUA: as a write and a flush" durable_without_fua
it_full "a flush that fails at the storage fails at the client, and so does every later one" failing_flush
it_full "every write fails at the client when it fails at the storage" failing_storage
it_full "two devices of one session are two devices" two_devices
it_full "a device can be forced away under load, the other stays, and it can be mapped again" unmap_under_load
# In short: ghosts.sh.
it_full "I/O of a client with two paths goes on over the second when a cable is pulled" two_paths
it_full "two clients have a device while it moves from one to the other, and no third" migration
it_full "a write that a server is at when it is told to stop succeeds" write_outlives_its_server
it "the client finds a restarted server" restart
it "on a server that asks for proofs Linux's client comes in by the listener that says from where" without_proof
finish
