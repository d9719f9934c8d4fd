# shellcheck shell=bash
# Linux's RNBD with itself: what our programs are compared with, and the proof that the lab's RDMA works.
# SPDX-License-Identifier: BSD-3-Clause

both_paths=(ip:10.99.0.2@ip:10.99.0.1 ip:10.99.1.2@ip:10.99.1.1)
size=64 # MiB

serve_and_map() {
  on server ramdisk "$size"
  on server kernel_server
  device=$(on client kernel_map k2k /dev/ram0 "${both_paths[@]}")
  [[ $device == /dev/rnbd* ]]
}

verify() {
  serve_and_map
  on client fio_verify "$device"
  same_data "$device" /dev/ram0
  on client kernel_unmap "$device"
  fails on client test -e "$device"
}

failover() {
  serve_and_map
  kernel_survives_pulled_cable k2k "$device" /dev/ram0
}

boot server client
it "fio's checksums hold over two paths, and the server has what the client reads" verify
it "I/O goes on over the second path when a cable is pulled, and the first comes back" failover
finish
