# shellcheck shell=bash
# Our plugin with Linux's RNBD server.

# serve_and_attach [PARAMETER=VALUE...]: the server's module parameters.
serve_and_attach() {
  on server ramdisk 64
  on server kernel_server "$@"
  on client attach -t 32 -- rnbd://10.99.0.1/dev/ram0
  on client nbd_device
}

same_data() {
  local here there
  here=$(on client sha256sum /dev/nbd0)
  there=$(on server sha256sum /dev/ram0)
  [[ ${here%% *} == "${there%% *}" ]] || fail "the client reads $here, the server has $there"
}

verify() {
  serve_and_attach "$@"
  on client fio_verify /dev/nbd0 --fsync=16
  same_data
}

fua_and_odd_requests() {
  serve_and_attach
  on client qemu-io -t writeback -f raw -c 'write -P 0x11 0 256k' -c 'write -f -P 0x22 512 512' \
    -c 'write -P 0x33 4000 100' -c flush -c 'write -z 64k 64k' -c 'read -P 0x22 512 512' \
    -c 'read -P 0x33 4000 100' -c 'read -P 0x11 4100 1000' -c 'read -P 0 64k 64k' \
    -c 'read -P 0x11 128k 128k' 'nbd+unix:///?socket=/run/nbd.sock'
  same_data
}

# A loop device can discard, and on newer kernels zero.
loop_device() {
  truncate -s 64M /tmp/disk
  modprobe loop
  losetup /dev/loop0 /tmp/disk
}
allocated() { stat -c %b /tmp/disk; }

discard() {
  local full less
  on server loop_device
  on server kernel_server
  on client attach rnbd://10.99.0.1/dev/loop0 discard=on write-zeroes=on
  on client qemu-io -f raw -c 'write -P 0x44 0 32M' 'nbd+unix:///?socket=/run/nbd.sock'
  on server sync
  full=$(on server allocated)
  on client qemu-io -d unmap -f raw -c 'discard 0 16M' -c 'write -z 16M 1M' -c 'read -P 0 16M 1M' \
    -c 'read -P 0x44 17M 15M' -c 'read -P 0 0 16M' 'nbd+unix:///?socket=/run/nbd.sock'
  less=$(on server allocated)
  ((less <= full - 30000)) || fail "$full blocks before the discard, $less after it"
}

access_modes() {
  on server ramdisk 64
  on server kernel_server
  on client attach rnbd://10.99.0.1/dev/ram0 access=ro
  on client qemu-io -r -f raw -c 'read -P 0 0 64k' 'nbd+unix:///?socket=/run/nbd.sock'
  fails on client qemu-io -f raw -c 'write -P 1 0 64k' 'nbd+unix:///?socket=/run/nbd.sock'
  on client stop nbdkit
  on client attach rnbd://10.99.0.1/dev/ram0 access=migration
  on client qemu-io -f raw -c 'write -P 1 0 64k' -c 'read -P 1 0 64k' 'nbd+unix:///?socket=/run/nbd.sock'
}

# Longer than five of the server's heartbeats of five seconds.
idle() {
  local seconds=40
  [[ -z ${FULL:-} ]] || seconds=300
  serve_and_attach
  on client qemu-io -f raw -c 'write -P 0x66 0 64k' /dev/nbd0
  limit=400 on client sleep "$seconds"
  on client qemu-io -f raw -r -c 'read -P 0x66 0 64k' /dev/nbd0
}

reload_server() {
  modprobe -r rnbd_server rtrs_server
  kernel_server
}
reload() {
  local load
  serve_and_attach
  limit=120 on client fio_verify /dev/nbd0 --time_based --runtime=60 & load=$!
  on client eventually 20 wrote 100
  on server reload_server
  if wait "$load"; then fail "the load did not notice that its server went away"; fi
  on client nbd-client -d /dev/nbd0
  on client nbd_device
  on client fio_verify /dev/nbd0
}
wrote() { awk -v min="$1" '{ exit !($5 >= min) }' /sys/block/nbd0/stat; }

boot server client
it "fio's checksums hold, with always_invalidate" verify always_invalidate=Y
it "fio's checksums hold, without always_invalidate" verify always_invalidate=N
it "fio's checksums hold with a queue depth of 16 and chunks of 64 KiB" verify \
  sess_queue_depth=16 max_chunk_size=65536
it "flush, FUA and requests of odd size do what they say" fua_and_odd_requests
it "discard and zeroes arrive where the server has them" discard
it "a device opened read-only cannot be written, one for migration can" access_modes
it "a session survives being idle" idle
it "the server's module is reloaded under load: errors, then a new session" reload
finish
