#!/bin/bash
# A Linux that is newer than any that is packaged, as client of our server, and as server of our client.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"

client() {
  start_server --export disk0=memory:1M
  limited /usr/bin/python3 -B "$source_dir/tests/integration/newer_linux_client.py" "$port"
  # One for each of its sessions with such flags, however many there were.
  (($(grep -c 'request flags that this server does not know' server.log) == 3)) ||
    fail "the log tells wrongly of unknown flags: $(<server.log)"
}
server() {
  local command=("${nbdkit_command[@]}" "$plugin")
  [[ $1 != bridge ]] || command=("${bridge_command[@]}")
  limited /usr/bin/python3 -B "$source_dir/tests/integration/newer_linux_server.py" . "$1" "${command[@]}"
}
it "a client's unknown flags are ignored where Linux ignores them, and told of once" client
it "a server with a higher minor version and more flags serves the plugin" server nbdkit
it "a server with a higher minor version and more flags serves the bridge" server bridge

finish
