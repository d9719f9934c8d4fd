# shellcheck shell=bash
# A write is held by the storage, its RDMA path dies, it is sent again: the newer write stays.
# SPDX-License-Identifier: BSD-3-Clause

runs=1
[[ -z ${FULL:-} ]] || runs=20

size=65536 # bytes, of a block

serve_ours() {
  start_held_storage
  rnbd_server --listen rdma:10.99.0.1:1234 --listen rdma:10.99.1.1:1234 --heartbeat 2s --export 'a=nbd+unix:///?socket=/run/storage.sock'
}
serve_kernel() {
  start_held_storage
  nbd_device /run/storage.sock
  kernel_server always_invalidate=N # see docs/operations.md, software RoCE
}
# Emulated guests are slow: four times the defaults.
attach_ours() { # DEVICE
  attach "rnbd://10.99.0.1/$1" path=rdma:10.99.1.1 policy=round-robin heartbeat=2s
  nbd_device
}
map_kernel() {
  kernel_map ghost a ip:10.99.0.2@ip:10.99.0.1 ip:10.99.1.2@ip:10.99.1.1
  echo round-robin >/sys/class/rtrs-client/ghost/mpath_policy
}

is_held() { [[ ! -e /tmp/hold ]]; }
release() {
  echo go >/tmp/release
  eventually 20 test -e /tmp/landed
  rm /tmp/landed
}

# uses_both DEVICE: in turn, once both work. The last block is for this.
uses_both() {
  local before=("$(sent 0)" "$(sent 1)")
  for _ in 1 2 3 4; do write_block "$1" 63 -; done
  sent_more 0 $((before[0] + 65536)) && sent_more 1 $((before[1] + 65536))
}

all_sent() { sent 0 && sent 1; }

# ---- How a path ends -------------------------------------------------------------------------------------

# cut WHERE CABLE: the path over it. silent: a cable is pulled, and nobody is told. The others are told to
# Linux: what it has in flight is lost to it, and nobody waits for its heartbeats.
cut() {
  case $1 in
    silent) pull server "$2" ;;
    at-server) on server disconnect_paths rtrs-server "$2" ;;
    at-client) on client disconnect_paths rtrs-client "$2" ;;
  esac
}
disconnect_paths() {
  local path
  for path in /sys/class/"$1"/*/paths/*"10.99.$2.1"*; do echo 1 >"$path/disconnect"; done
}
# It is refused as long as something of its old life executes.
reconnect_path() { echo 1 | tee /sys/class/rtrs-client/ghost/paths/*"10.99.$1.1"*/reconnect; }

# send_held DEVICE PLACE: A is held by the storage; sets `first`, its job, and `cable`, which it took.
send_held() {
  local before after
  mapfile -t before < <(on client all_sent)
  on server touch /tmp/hold
  on client write_block "$1" "$2" A & first=$!
  on server eventually 30 is_held
  mapfile -t after < <(on client all_sent)
  for cable in 0 1; do ((after[cable] - before[cable] < size)) || return 0; done
  fail "A took neither cable: ${before[*]}, ${after[*]}"
}

a_is_answered() { ! kill -0 "$first" 2>/dev/null; }

# ---- One run -----------------------------------------------------------------------------------------------

# ghost_run DEVICE PLACE CUT AGAIN: see `cut`; again: A is sent again while it is held; later: after that.
ghost_run() {
  local first cable others_before early=0
  limit=400 on client eventually 100 uses_both "$1"
  send_held "$1" "$2"
  others_before=$(on client sent $((1 - cable)))
  cut "$3" "$cable"
  if [[ $4 == again ]]; then
    limit=400 on client eventually 60 sent_more $((1 - cable)) $((others_before + size))
  else
    limit=400 on client eventually 60 lost_paths $(($2 + 1))
  fi
  # Others go on, which takes a moment, in which A might be answered.
  on client block_is "$1" 63 -
  if a_is_answered; then
    early=1
    on client write_block "$1" "$2" B
  fi
  [[ $3 != silent ]] || plug server "$cable"
  on server release
  wait "$first"
  ((early)) || on client write_block "$1" "$2" B
  echo "run $2, $3: A took cable $cable$( ((!early)) || echo ', and was answered early')"
  on client block_is "$1" "$2" B || fail "run $2: B is lost"
  written+=("$2")
  [[ $3 != at-client ]] || on client eventually 30 reconnect_path "$cable"
}
lost_paths() { (($(nbdkit_says 'path to .* is lost' | wc -l) >= $1)); }

# Every B is still there.
all_are_b() {
  local place
  for place in "${@:2}"; do block_is "$1" "$place" B || fail "block $place of $1 is not B"; done
}

# ghosts DEVICE AGAIN CUT...: in turn.
ghosts() {
  local device=$1 again=$2 place written=()
  shift 2
  local cuts=("$@")
  for ((place = 0; place < runs; place++)); do
    ghost_run "$device" "$place" "${cuts[place % ${#cuts[@]}]}" "$again"
  done
  on client all_are_b "$device" "${written[@]}"
  on server all_are_b /tmp/image "${written[@]}"
}

ours_to_ours() {
  on server serve_ours
  on client attach_ours a
  ghosts /dev/nbd0 again silent
  on client nbd-client -d /dev/nbd0
  on client stop nbdkit
  on server stop rnbd-server
  says rnbd-server.log "requests that were sent again, $runs were still executing"
}

ours_to_kernel() {
  on server serve_kernel
  on client attach_ours dev/nbd0
  ghosts /dev/nbd0 later at-server silent
}

kernel_to_ours() {
  local device
  on server serve_ours
  device=$(on client map_kernel)
  ghosts "$device" again at-client silent
  on client kernel_unmap "$device"
  on server stop rnbd-server
  says rnbd-server.log "requests that were sent again, $runs were still executing"
}

boot server client
it "our plugin, our server: $runs times the newer data stay" ours_to_ours
it "our plugin, Linux's server: $runs times the newer data stay" ours_to_kernel
it "Linux's client, our server: $runs times the newer data stay" kernel_to_ours
finish
