# shellcheck shell=bash
# What more than one scenario does, on the host, with the guests `server` and `client`.
# SPDX-License-Identifier: BSD-3-Clause

# same_data CLIENT'S-FILE SERVER'S-FILE: both read the same.
same_data() {
  local here there
  here=$(on client digest "$1")
  there=$(on server digest "$2")
  [[ $here == "$there" ]] || fail "the client reads $here, the server has $there"
}

# arrives_as WHAT COMMAND...: what the client does is that for the storage; see start_logged_storage.
arrives_as() {
  local before arrived
  before=$(wc -l <arrived.log)
  on client "${@:2}"
  arrived=$(tail -n "+$((before + 1))" arrived.log | sed -nE 's/.* (Write|Flush) id=[0-9]+( .*)? \.\.\.$/\1\2/p')
  [[ $arrived == "$1" ]] || fail "${*:2} arrived as: $arrived"
}

# kernel_survives_pulled_cable SESSION DEVICE SERVER'S-FILE: of Linux's client, which has two paths.
kernel_survives_pulled_cable() {
  local session=$1 device=$2 load
  limit=400 on client verify_until enough "$device" & load=$!
  on client eventually 100 writes_reach "$device" 100
  pull client 0
  on client eventually 30 path_is "$session" 10.99.0.1 disconnected
  on client path_is "$session" 10.99.1.1 connected
  touch enough
  wait "$load"
  plug client 0
  # It tries again every 30 seconds.
  limit=240 on client eventually 100 path_is "$session" 10.99.0.1 connected
  on client fio_verify "$device"
  same_data "$device" "$3"
}
