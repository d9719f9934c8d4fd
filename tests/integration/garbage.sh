#!/bin/bash
# Peers that do not play by the rules, at every stage of the protocol: the server sends them away,
# and the next client finds it as if nothing had been.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"

stage() {
  random_file image 1M
  start_server --export "disk0=$PWD/image" --export readonly=memory:1M,ro
  limited /usr/bin/python3 "$source_dir/tests/integration/garbage.py" "$port" "$1"
}
# The bystander sits still meanwhile, and answers no heartbeats.
generations() {
  random_file image 1M
  start_server --queue-depth 48 --heartbeat 10s --export "disk0=$PWD/image" --export slow=delay:write=1s:memory:1M
  limited /usr/bin/python3 "$source_dir/tests/integration/garbage.py" "$port" generation
}
it "strangers: silence, random bytes, HTTP, TLS, NBD" stage stranger
it "hellos that cannot be" stage hello
it "the info exchange at the wrong place, with wrong sizes and names" stage info
it "frames that are damaged, too large, out of place or out of bounds" stage frame
it "requests whose headers contradict their chunk" stage request
it "RNBD messages that nobody should send are answered with an errno" stage message
# 4096-byte blocks, and neither TRIM nor WRITE ZEROES.
crude() {
  truncate -s 1M part
  nbdkit_name=inner start_nbdkit --filter=blocksize-policy --filter=nozero split part blocksize-minimum=4096
  start_server --export disk0=memory:1M --export "crude=$uri"
  limited /usr/bin/python3 "$source_dir/tests/integration/garbage.py" "$port" crude
}
it "RNBD messages for what the storage cannot do, and for parts of its blocks" crude
# What a name could lead to, in the directory of the session or beside it.
search() {
  mkdir -p tree/own/inner tree/other
  truncate -s 1M tree/own/disk tree/other/disk outside
  truncate -s 2M tree/own/inner/disk
  ln -s ../../outside tree/own/link
  ln -s ../../../outside tree/own/inner/link
  ln -s .. tree/own/up
  ln -s loop tree/own/loop
  ln -s /proc/self/root tree/own/magic
  mkfifo tree/own/fifo
  /usr/bin/python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("tree/own/socket")'
  start_server --export disk0=memory:1M --search-path "$PWD/tree/%SESSNAME%"
  limited /usr/bin/python3 "$source_dir/tests/integration/garbage.py" "$port" search
}
it "names with the search path: nothing but the files below the session's directory is opened" search
# More than 200 lines in a few seconds, then as many as seconds have gone by; all parts of the server together.
comes_and_goes() {
  local start=$SECONDS
  # The first session answers no heartbeats while the others come and go.
  start_server --heartbeat 10s --export disk0=memory:1M
  limited /usr/bin/python3 "$source_dir/tests/integration/garbage.py" "$port" restless
  (($(wc -l <server.log) <= 200 + SECONDS - start + 10)) || fail "$(wc -l <server.log) lines in the log"
  says server.log "opened 'disk0'"
  eventually 20 strangers_are_told_of
}
# One line may be said in each second.
strangers_are_told_of() {
  limited /usr/bin/python3 "$source_dir/tests/integration/garbage.py" "$port" stranger_that_says_nothing
  grep -q "lines before it were not logged" server.log
}
it "a client that opens and closes a thousand times does not fill the log" comes_and_goes
it "generations that are older, jump, or come too soon: what was answered stays, and others notice nothing" generations

finish
