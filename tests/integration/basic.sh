#!/bin/bash
# The main job: a file at the server is a block device for NBD clients.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"

copy_out() {
  random_file image 64M
  start_server --export "disk0=$PWD/image"
  attach disk0
  nbdcopy "$uri" copy
  cmp image copy
}
it "a copy out equals the image byte for byte" copy_out

copy_in() {
  random_file source 64M
  truncate -s 64M image
  start_server --export "disk0=$PWD/image"
  attach disk0
  nbdcopy --flush source "$uri"
  stop nbdkit
  stop server
  cmp source image
}
it "a copy in is in the file byte for byte when server and nbdkit have stopped" copy_in

copy_sparse() {
  truncate -s 1G image
  printf start | dd of=image conv=notrunc status=none
  printf end | dd of=image conv=notrunc bs=1 seek=$((1024 * 1024 * 1024 - 3)) status=none
  start_server --export "disk0=$PWD/image"
  attach disk0
  nbdcopy "$uri" copy
  cmp image copy
  (($(stat -c %b copy) * 512 < 1024 * 1024)) || fail "the holes of the image are data in the copy"
  nbdinfo --map --totals "$uri" | tee map
  says map 'hole,zero'
}
it "holes of the image stay holes in a copy" copy_sparse

info() {
  random_file image 10M
  start_server --export "disk0=$PWD/image"
  attach disk0
  nbdinfo "$uri" | tee info
  says info 'export-size: 10485760'
  says info 'protocol: newstyle-fixed without TLS, using structured packets'
  says info 'is_read_only: false'
  says info 'block_size_preferred: 4096'
}
it "nbdinfo tells size and block size" info

two_exports() {
  random_file one 1M
  random_file two 2M
  start_server --export "one=$PWD/one" --export "two=$PWD/two" --export scratch=memory:3M
  nbdkit_name=first attach one
  nbdcopy "$uri" copy1
  nbdkit_name=second attach two
  nbdcopy "$uri" copy2
  nbdkit_name=third attach scratch
  [[ $(nbdinfo --size "$uri") == $((3 * 1024 * 1024)) ]]
  cmp one copy1
  cmp two copy2
}
it "one server has several exports under their own names" two_exports

captive() {
  random_file image 8M
  start_server --export "disk0=$PWD/image"
  # shellcheck disable=SC2016 # nbdkit expands $uri
  limited "${nbdkit_command[@]}" -U - "$plugin" "rnbd+tcp://$address/disk0" \
    --run 'env -u LD_PRELOAD nbdcopy "$uri" copy'
  cmp image copy
}
it "captive nbdkit copies an export with one command" captive

several_clients() {
  random_file image 32M
  start_server --export "disk0=$PWD/image"
  attach disk0
  local i jobs=()
  for i in 1 2 3 4; do
    nbdcopy --connections=2 "$uri" "copy$i" &
    jobs+=($!)
  done
  for i in "${jobs[@]}"; do wait "$i"; done
  for i in 1 2 3 4; do cmp image "copy$i"; done
}
it "four clients at once each get the whole image" several_clients

finish
