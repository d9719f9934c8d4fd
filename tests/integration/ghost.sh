#!/bin/bash
# Ghost writes: a write is held by the storage, its path dies, it is sent again, a newer write of the
# same block is answered, and then the held copy goes on. FULL=1 makes it 1,000 runs and more.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"
source "$source_dir/tests/tools/held_storage.sh"

ghost_program=$(realpath "${BASH_SOURCE[0]%/*}")/ghost.py
quick=("heartbeat=$((50 * slow))ms" reconnect-min=5ms reconnect-max=50ms)

# runs ORDINARY FULL: with rnbd-bridge 3 are enough.
runs() {
  if [[ -n ${FULL:-} ]]; then
    echo "$2"
  elif [[ $face == bridge && $1 -gt 3 ]]; then
    echo 3
  else
    echo "$1"
  fi
}

# start_storage [MODEL] [MULTI-CONN]: see held_storage.sh; it is at $storage.
start_storage() {
  requires nbdkit
  held_storage "$PWD" "$@"
  nbdkit_name=storage start_nbdkit "${held_storage[@]}"
  storage=$uri
}

# start_ghost SERVER-ARGUMENTS... -- PLUGIN-ARGUMENTS... -- GHOST-ARGUMENTS...
start_ghost() {
  local answers_read asks_write
  server_arguments=()
  for ((; $# > 0; )); do
    [[ $1 != -- ]] || break
    server_arguments+=("$1")
    shift
  done
  shift
  local plugin_arguments=()
  for ((; $# > 0; )); do
    [[ $1 != -- ]] || break
    plugin_arguments+=("$1")
    shift
  done
  shift
  start_server "${server_arguments[@]}"
  pipe asks asks_write
  pipe answers_read answers
  spawn ghost /usr/bin/python3 -B "$ghost_program" "$@" "$port" "$asks_write" "$answers_read"
  exec {asks_write}>&- {answers_read}<&-
  await_line "$asks" 20
  local word first second
  read -r word first second <<<"$line"
  [[ $word == ports ]] || fail "the ghost says: $line"
  [[ -z $second ]] || plugin_arguments+=("path=127.0.0.1:$second")
  nbdkit_flags=(-t 16)
  attach_to "rnbd+tcp://127.0.0.1:$first/disk0" policy=round-robin "${quick[@]}" \
    "${plugin_arguments[@]+"${plugin_arguments[@]}"}"
  echo "$uri" >&"$answers"
}

# end_ghost: all its runs.
end_ghost() {
  limit=$((60 + $(runs 0 1200)))
  while await_line "$asks" "$limit"; do
    case $line in
      restart) another_server ;;
      ready) another_server_ready ;;
      end) break ;;
    esac
  done
  if [[ $line == end ]]; then
    stop nbdkit
    echo bye >&"$answers"
  fi
  wait_end ghost 20 || fail "the ghost still runs"
  cat ghost.out ghost.log
  ((status == 0)) || fail "see above"
}

# Killed, but not waited for: what it had begun in the kernel keeps it alive. The next one may want to
# wait for that.
server_now=server
ready_within=1 # seconds
another_server() {
  local ready_write
  old_server=$server_now server_now=server$((++servers))
  kill -KILL "${pid[$old_server]}"
  pipe server_ready ready_write
  spawn "$server_now" "${server_command[@]}" --listen tcp:127.0.0.1:0 --ready-fd "$ready_write" \
    "${server_arguments[@]}"
  exec {ready_write}>&-
  port=0
  if await_line "$server_ready" "$ready_within"; then port=${line##*:}; fi
  echo "$port" >&"$answers"
}
servers=0
another_server_ready() {
  if ((port == 0)); then
    await_line "$server_ready" 20 || fail "the new server is not ready"
    port=${line##*:}
  fi
  exec {server_ready}<&-
  wait_end "$old_server" 20 || fail "the killed server is still there"
  echo "$port" >&"$answers"
}

over_nbd() {
  requires_python nbd
  start_storage
  start_ghost --export "disk0=$storage" -- "${plugin_options[@]+"${plugin_options[@]}"}" -- "$@"
  end_ghost
}
plugin_options=()

it "a path is cut, the write is sent again over the other: the newer data stay" \
  over_nbd --runs "$(runs 20 1000)"
it "a path goes silent, the write is sent again over the other: the newer data stay" \
  over_nbd --silent --runs "$(runs 10 1000)"
it "the only path is cut and comes back: the newer data stay" \
  over_nbd --paths 1 --returns --runs "$(runs 10 500)"
it_plugin "the only path goes silent and comes back: the newer data stay" \
  over_nbd --paths 1 --silent --returns --runs "$(runs 5 200)"
it "the first copy is stuck in the network and arrives last: the newer data stay" \
  over_nbd --late --runs "$(runs 10 500)"

# As between peers of which one is Linux: each follows the rules for those.
without_extension() {
  plugin_options=(extensions=no)
  over_nbd "$@"
}
it_plugin "without the extension, a path is cut and comes back: the newer data stay" \
  without_extension --returns --refused --window 0.3 --runs "$(runs 5 200)"
it_plugin "without the extension, the only path goes silent and comes back: the newer data stay" \
  without_extension --paths 1 --silent --returns --refused --window 0.3 --runs "$(runs 5 200)"

# The data of the held write are still where they arrived, and other requests use the permits.
own_storage() {
  requires_python nbd
  truncate -s 4M image
  start_ghost --export "disk0=delay:hold-file=$PWD/hold,hold=300ms:$PWD/image" -- -- \
    --hold 0.3 --others 40 "$@"
  end_ghost
}
# overtaken EXPORT [again] [-- ARGUMENTS OF THE SECOND CLIENT...]: the first client's write is carried out, its answer
# lost; another client writes; the first one comes back. With `again` the server is killed in between.
overtaken() {
  local device=$1 answers_read asks_write again=false wiped=false arguments=()
  requires_python nbd
  mkdir storage
  truncate -s 1M storage/file
  case $device in
    disk0) arguments=(--export "disk0=$PWD/storage/file") ;;
    file) arguments=(--search-path "$PWD/storage") ;;
  esac
  [[ ${2:-} != again ]] || { again=true && shift; }
  [[ ${2:-} != wiped ]] || { again=true wiped=true && shift; }
  [[ ${2:-} != -- ]] || shift
  start_server "${arguments[@]}"
  pipe asks asks_write
  pipe answers_read answers
  spawn overtaken /usr/bin/python3 -B "${ghost_program%/*}/overtaken.py" "$port" "$PWD/storage/file" \
    "$asks_write" "$answers_read"
  exec {asks_write}>&- {answers_read}<&-
  await_line "$asks" 20
  nbdkit_name=first attach_to "rnbd+tcp://127.0.0.1:$line/$device" "${quick[@]}" "${first_options[@]}"
  local first=$socket
  nbdkit_name=second attach_to "rnbd+tcp://$address/$device" "${quick[@]}" "${@:2}"
  echo "$first $socket" >&"$answers"
  await_line "$asks" 20
  [[ $line == restart ]] || fail "it says: $line"
  if $again; then
    kill -KILL "${pid[server]}"
    wait_end server 10
    ! $wiped || rm -r "$STATE_DIRECTORY"
    server_port=$port start_server "${arguments[@]}"
  fi
  echo "done" >&"$answers"
  wait_end overtaken $((60 * slow)) || fail "the first client still waits"
  cat overtaken.log
  ((status == 0)) || fail "it left with $status"
}
first_options=()

it "a write whose answer was lost is not repeated over that of another client" overtaken disk0
it_plugin "nor with a file of the search path" overtaken file
it_plugin "nor when the server was killed meanwhile" overtaken disk0 again
it_plugin "nor a file of the search path, then" overtaken file again
it_plugin "nor when what the server kept was lost with it, if the other client came after that" overtaken disk0 wiped
overtaken_in_migration() {
  first_options=(access=migration)
  overtaken disk0 wiped -- access=migration
}
it_plugin "nor then when both have it for migration" overtaken_in_migration
it_plugin "nor when the other client had it for migration" overtaken disk0 -- access=migration

it_plugin "a write that waits in the server itself keeps its own data, whatever is written meanwhile" \
  own_storage --runs "$(runs 5 200)"

# A file in which a write does not end: the killed server has it open until then.
file_of_killed_server() {
  requires_python nbd
  requires nbdfuse
  [[ -w /dev/fuse ]] || skip "no /dev/fuse to use"
  start_storage
  : >file
  spawn fuse nbdfuse -P "$PWD/mounted" file "$storage"
  eventually 20 mounted_or_not
  [[ -e mounted ]] || skip "nbdfuse cannot mount here: $(tail -n 1 fuse.log)"
  start_ghost --export "disk0=$PWD/file" -- -- --restart --window 0.3 "$@"
  end_ghost
  says server1.log 'in use.*waiting for it'
  stop "$server_now"
  # It would leave when nobody has it mounted any more, but other tests make mount namespaces.
  kill_hard fuse
  umount file
}
mounted_or_not() { [[ -e mounted ]] || ! kill -0 "${pid[fuse]}" 2>/dev/null; }
it_plugin "the server is killed while a write to its file does not end: the next one waits for it" \
  file_of_killed_server --runs "$(runs 3 50)"

# It listens before the old one's file is free, and gives it to nobody.
file_of_killed_server_later() {
  ready_within=10
  file_of_killed_server "$@"
  says server1.log "ready, .*disk0 \(waiting for its storage\)"
  says server1.log "export 'disk0' is served now"
}
it_plugin "the next server listens meanwhile, and serves the file when the write has ended" \
  file_of_killed_server_later --runs "$(runs 2 20)"

# Nobody locks an NBD export, but a server that has one connection at a time is as good.
nbd_of_killed_server() {
  requires_python nbd
  start_storage serialize_connections 3
  start_ghost --export "disk0=$storage" -- -- --restart --serial --window 0.3 "$@"
  end_ghost
}
it_plugin "the server is killed while an NBD server that takes one connection at a time has a write of it" \
  nbd_of_killed_server --runs "$(runs 3 50)"

finish
