# shellcheck shell=bash
# Linux's RNBD with itself: what our programs are compared with, and the proof that the lab's RDMA works.

both_paths=(ip:10.99.0.2@ip:10.99.0.1 ip:10.99.1.2@ip:10.99.1.1)
size=64 # MiB

serve_and_map() {
  on server ramdisk "$size"
  on server kernel_server
  device=$(on client kernel_map k2k /dev/ram0 "${both_paths[@]}")
  [[ $device == /dev/rnbd* ]]
}

# Both ends read the same.
same_data() {
  local here there
  here=$(on client sha256sum "$device")
  there=$(on server sha256sum /dev/ram0)
  [[ ${here%% *} == "${there%% *}" ]] || fail "the client reads $here, the server has $there"
}

verify() {
  serve_and_map
  on client fio_verify "$device"
  same_data
  on client kernel_unmap "$device"
  fails on client test -e "$device"
}

failover() {
  local load
  serve_and_map
  limit=120 on client fio_verify "$device" --time_based --runtime=20 & load=$!
  on client eventually 20 writes_reach "$device" 100
  pull client 0
  on client eventually 30 path_is k2k 10.99.0.1 disconnected
  on client path_is k2k 10.99.1.1 connected
  kill -0 "$load" || fail "the load ended before the cable was pulled"
  wait "$load"
  plug client 0
  on client eventually 60 path_is k2k 10.99.0.1 connected
  on client fio_verify "$device"
  same_data
}
writes_reach() { awk -v min="$2" '{ exit !($5 >= min) }' "/sys/block/${1##*/}/stat"; }

boot server client
it "fio's checksums hold over two paths, and the server has what the client reads" verify
it "I/O goes on over the second path when a cable is pulled, and the first comes back" failover
finish
