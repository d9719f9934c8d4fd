# shellcheck shell=bash
# A bridge beneath a service manager that keeps descriptors, and NBD clients that stay.
# SPDX-License-Identifier: BSD-3-Clause

serve() {
  [[ -e image ]] || truncate -s 64M image
  start_server --export "disk0=$PWD/image" --state-directory "$PWD/state" "$@"
}
# keep URI [OPTION...]: the bridge, as a service.
keep() {
  socket=$PWD/kept.sock
  uri="nbd+unix:///?socket=$socket"
  STORE_DIRECTORY=$PWD spawn kept "$source_dir/tests/lab/lib/descriptor-store" kept \
    "${bridge_command[@]}" --listen "unix:$socket" --log-level debug "$@"
  eventually 20 test -s kept.pid
}
# As `systemctl restart` does.
restart() {
  local before
  before=$(wc -l <kept.starts)
  kill -HUP "${pid[kept]}"
  eventually 20 started_after "$before"
  eventually 20 test -s kept.pid
}
started_after() { (($(wc -l <kept.starts) > $1)); }
# hold / let_start: no start begins in between.
hold() {
  local before
  before=$(<kept.pid)
  touch kept.held
  kill -HUP "${pid[kept]}"
  eventually 20 is_gone "$before"
  eventually 20 test ! -e kept.pid
}
is_gone() { [[ ! -e /proc/$1 ]]; }
let_start() {
  rm kept.held
  eventually 20 test -s kept.pid
}

# client NAME simple|structured|extended: an NBD client that stays, see nbd_holder.py.
client() {
  local name=$1 pipe
  mkfifo "$name.ask"
  spawn "$name" /usr/bin/python3 -B "$source_dir/tests/integration/nbd_holder.py" "$uri" "$name.ask" "${@:2}"
  exec {pipe}<>"$name.ask" # does not wait for a reader
  ask[$name]=$pipe
  wait_for_line "$name.out" ready
}
declare -A ask=() asked=()
# says_of NAME ANSWER WORD...: what the client answers.
says_of() {
  local name=$1 answer=$2
  shift 2
  asked[$name]=$((${asked[$name]-0} + 1))
  echo "$*" >&"${ask[$name]}"
  eventually 30 answered "$name" "${asked[$name]}"
  [[ $(sed -n "$((${asked[$name]} + 1))p" "$name.out") == "$answer" ]] ||
    fail "$name: $* is answered with $(tail -n 1 "$name.out"), not with $answer"
}
answered() { (($(wc -l <"$1.out") > $2)); }

# clear_and_secret KEEP: the bridge by KEEP, a client of it, and one over TLS that has written.
clear_and_secret() {
  local kept
  "${ctl_command[@]}" keygen host1 keys.psk --out host1.psk
  serve
  "$1" "rnbd+tcp://$address/disk0" --listen tcp:127.0.0.1:0 --tls on --tls-psk keys.psk
  client clear simple
  kept=$uri
  uri="nbds://host1@$(grep -oE -m 1 '127\.0\.0\.1:[0-9]+, in front' kept.log | cut -d, -f1)/?tls-psk-file=$PWD/host1.psk"
  client secret structured
  uri=$kept
  says_of secret ok write 0 a
}

# other_is_refused: another client may not write.
other_is_refused() {
  local kept=$uri
  bridge_name=other start_bridge "rnbd+tcp://$address/disk0"
  nbdsh <<<"
try:
  h.pwrite(b'o' * 4096, 0)
except nbd.Error:
  print('refused')" >others
  uri=$kept
  grep -qx refused others || fail "another client has got the right of one that has written"
  stop other
}

# Three clients with 16 requests each, whose answers and data are checked.
begin_load() {
  local number
  for number in 1 2 3; do
    spawn "load$number" /usr/bin/python3 -B "$source_dir/tests/integration/nbd_writer.py" "$socket" "$number" "load$number"
    eventually 20 test -e "load$number.runs"
  done
}
end_load() {
  local number
  touch enough
  for number in 1 2 3; do
    wait_end "load$number" 60 || fail "load$number does not end"
    ((status == 0)) || fail "load$number: $(tail -n 3 "load$number.log")"
    cat "load$number.out"
  done
}
