#!/bin/bash
# Exports whose file is replaced, deleted or moved away while clients use it.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"

root=root
ctl() { limited "${ctl_command[@]}" --root "$root" "$@"; }

# serve ARGUMENTS...: a server that rnbd-ctl finds, and a bridge in front of all its exports.
serve() {
  requires_python nbd
  mkdir -p "$root"/run/rnbd-server "$root/sys/block"
  start_server --control "$PWD/root/run/rnbd-server/control" --state-directory "$PWD/state" "$@"
  start_bridge "rnbd+tcp://$address"
}

uri_of() { echo "nbd+unix:///$1?socket=$socket"; }

# hold EXPORT...: a client that has these open, and has written the export's name to each, if it may.
hold() {
  rm -f held
  local each uris=()
  for each in "$@"; do uris+=("$(uri_of "$each")"); done
  spawn holder /usr/bin/python3 -c '
import nbd, os, signal, sys
handles = []
for uri in sys.argv[1:]:
    h = nbd.NBD()
    h.connect_uri(uri)
    name = h.get_export_name().encode()
    h.pread(512, 0) if h.is_read_only() else h.pwrite(name.ljust(512), 0)
    handles.append(h)
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
open("held", "w").close()
while True: signal.pause()' "${uris[@]}"
  eventually 60 test -e held
}

# finds PATTERN...: the check of the server names each, and has as many findings.
finds() {
  local pattern
  ctl server check >found || true
  for pattern in "$@"; do grep -qE -- "$pattern" found || return 1; done
  (($(grep -cE '^(CRITICAL|WARNING):' found) == $#))
}

# each_way: some of these have no name any more, and some have one elsewhere.
each_way() {
  mkdir folder v1 v2
  truncate -s 1M replaced copied deleted folder/moved v1/linked v2/linked kept
  ln -s v1 current
  serve --metrics 0 --export "replaced=$PWD/replaced" --export "copied=$PWD/copied" \
    --export "deleted=$PWD/deleted" --export "moved=$PWD/folder/moved" \
    --export "linked=$PWD/current/linked" --export "kept=$PWD/kept"
  hold replaced copied deleted moved linked kept
  status_of 0 "${ctl_command[@]}" --root "$root" server check
  truncate -s 1M new
  mv new replaced
  cp --remove-destination kept copied
  rm deleted
  mv folder elsewhere
  ln -sfn v2 current
  ln kept kept-too
  chmod 600 kept
  # What has lost its name is critical at once, and all the others are soon.
  status_of 2 "${ctl_command[@]}" --root "$root" server check
  says said '^CRITICAL: export deleted: its file .*/deleted was deleted'
  eventually 20 finds "^CRITICAL: export replaced: its file $PWD/replaced was replaced; .* gone " \
    "^CRITICAL: export copied: its file $PWD/copied was replaced; " \
    "^CRITICAL: export deleted: its file $PWD/deleted was deleted; .* copy the export " \
    "^CRITICAL: export moved: $PWD/folder/moved leads nowhere now; .* put it back there" \
    "^CRITICAL: export linked: $PWD/current/linked leads to other storage now; "
  ctl server list >rows.txt
  says rows.txt '^[^ ]+ +replaced +displaced +rw '
  says rows.txt '^[^ ]+ +kept +open +rw '
  status_of 2 "${ctl_command[@]}" --root "$root" server check json
  says said '"its file .*/replaced was replaced'
  local where
  where=$(grep -oE 'http://[^ ]+/metrics' server.log)
  limited curl -sf "$where" >page
  says page '^rnbd_export_displaced\{export="replaced"\} 1$'
  says page '^rnbd_export_displaced\{export="kept"\} 0$'
  local name
  for name in replaced copied deleted moved linked; do
    eventually 20 grep -q "error: export '$name': .*$PWD/" server.log
  done
  mv elsewhere folder
  ln -sfn v1 current
  eventually 20 finds '^CRITICAL: export replaced: ' '^CRITICAL: export copied: ' \
    '^CRITICAL: export deleted: '
  says server.log "export 'moved': no client uses storage any more that is not at its path"
  stop holder
  # Nobody has the replaced ones open; of the deleted one there is nothing else.
  eventually 20 finds '^CRITICAL: export deleted: '
}
it "a file that is replaced, deleted or moved away is critical by name, logged, and told when it is right again" each_way

saved() {
  truncate -s 1M image
  serve --export "disk0=$PWD/image"
  hold disk0
  rm image
  eventually 20 finds '^CRITICAL: export disk0: '
  nbdcopy "$(uri_of disk0)" copy
  [[ $(head -c 5 copy) == disk0 ]]
  mv copy image
  eventually 20 finds '^CRITICAL: export disk0: its file .* was replaced; '
  stop holder
  eventually 20 finds
  [[ $(nbdsh "$(uri_of disk0)" <<<'print(h.pread(5, 0).decode())') == disk0 ]]
  says server.log "export 'disk0': its storage is another one now"
}
it "a deleted file is copied out of its export, and the copy at its path is what the next client gets" saved

harmless() {
  truncate -s 1M image new
  serve --export "disk0=$PWD/image,ro"
  hold disk0
  mv new image
  status_of 1 "${ctl_command[@]}" --root "$root" server check
  says said '^WARNING: export disk0: its file .* was '
  eventually 20 grep -q "warning: export 'disk0': its file .* was replaced" server.log
}
it "of a read-only export that is a warning" harmless

searched() {
  mkdir images
  truncate -s 1M images/vm1 images/vm2
  serve --search-path "$PWD/images"
  hold vm1 vm2
  rm images/vm1
  eventually 20 finds '^CRITICAL: export vm1: its file below the search path was deleted or replaced'
  ctl server list >rows.txt
  says rows.txt '^[^ ]+ +vm1 +displaced +rw '
  says rows.txt '^[^ ]+ +vm2 +open +rw '
  eventually 20 grep -q "error: export 'vm1': its file below the search path" server.log
  stop holder
  eventually 20 finds
}
it "a file of the search path that is deleted is critical while a client has it open" searched

of_one_name() {
  mkdir images
  truncate -s 1M images/vm1 other
  : >conf
  serve --config "$PWD/conf" --search-path "$PWD/images" --metrics 0
  hold vm1
  rm images/vm1
  printf '%s\n' '[export.vm1]' "path = \"$PWD/other\"" >conf
  "${ctl_command[@]}" "$PWD/root/run/rnbd-server/control" reload
  finds '^CRITICAL: export vm1: its file below the search path was deleted or replaced'
  limited curl -sf "$(grep -oE 'http://[^ ]+/metrics' server.log)" >page
  says page '^rnbd_export_displaced\{export="vm1"\} 1$'
}
it "an export that a reload adds hides no deleted file of the same name" of_one_name

covered() {
  ((EUID == 0)) || skip "only root can mount a file system"
  mkdir folder other
  mount -t tmpfs -o size=2M none other || skip "cannot mount a tmpfs"
  at_end umount other
  truncate -s 1M folder/image other/image
  serve --export "disk0=$PWD/folder/image"
  hold disk0
  mount --bind other folder
  at_end umount folder
  eventually 20 finds '^CRITICAL: export disk0: .*/folder/image leads to other storage now; '
}
it "a file system that is mounted over a file is told" covered

switched() {
  ((EUID == 0)) || skip "only root can make loop devices"
  truncate -s 1M first second
  local device name
  for name in first second; do
    device=$(losetup --find --show "$PWD/$name" 2>/dev/null) || skip "no loop devices here"
    at_end losetup -d "$device"
    ln -s "$device" "volume-$name"
  done
  cp -P volume-first volume
  serve --export "disk0=$PWD/volume"
  hold disk0
  ln -sf "$(readlink volume-second)" volume
  eventually 20 finds '^CRITICAL: export disk0: .*/volume leads to other storage now; '
  stop holder
  eventually 20 finds
  nbdsh "$(uri_of disk0)" <<<'assert h.pread(512, 0) == bytes(512)'
  says server.log "export 'disk0': its storage is another one now"
}
it "a device's name that leads to another device is told, and the next client gets that one" switched

# serve_hanging ARGUMENTS...: a server with an export of the file image, whose status hangs.
serve_hanging() {
  local server_command=("${server_command[@]}")
  local library=${RNBD_HANGING_OPEN:-$build_dir/tests/integration/libhanging_open.so}
  [[ -e $library ]] || skip "there is no $library"
  [[ -z $sanitizer ]] || skip "the sanitizer's library would have to be loaded first"
  truncate -s 1M image
  server_command=(env "LD_PRELOAD=$library" "${server_command[@]}")
  start_server --export "disk0=$PWD/image" "$@"
  touch image.hangs
  wait_for_line server.log "the status of $PWD/image hangs"
}

leaves() {
  serve_hanging
  kill -TERM "${pid[server]}"
  wait_end server $((20 * slow)) || fail "it still runs"
  ((status == 0))
  says server.log 'hangs.* is abandoned'
}
it "a path that hangs cannot keep the server from ending" leaves

# has_open PATTERN NUMBER: the server has descriptors of as many such files.
has_open() {
  (($(find "/proc/${pid[server]}/fd" -lname "$1" -printf '%l\n' | sort -u | wc -l) == $2))
}

# open_each FILE...: a session for each, which opens it and stays.
open_each() {
  exec /usr/bin/python3 -c "
import sys, threading
sys.path.insert(0, '$source_dir/tests/integration')
from raw_peer import *
def hold(name):
    session = Session($port)
    session.open(name.encode())
    session.expect_close()
for name in sys.argv[1:]: threading.Thread(target=hold, args=[name]).start()
" "$@"
}

all_but_one() {
  mkdir images
  local hung=(stuck{1..15})
  truncate -s 1M images/healthy "${hung[@]/#/images/}"
  serve_hanging --search-path "$PWD/images" --heartbeat 60s
  local each
  for each in "${hung[@]}"; do touch "images/$each.hangs"; done
  export RAW_PEER_TIMEOUT=100
  spawn user open_each healthy
  eventually 10 has_open '*/healthy' 1
  spawn askers open_each "${hung[@]}"
  eventually 10 has_open '*/stuck*' 15
  kill_hard user
  eventually 10 has_open '*/healthy' 0
  kill_hard askers
  rm image.hangs images/*.hangs
}
it "a path that hangs takes no thread from files that are opened and closed" all_but_one

# restarted: the server ends, and begins again with the same exports.
restarted() {
  stop server
  server_name=${1:-again} start_server --control "$PWD/root/run/rnbd-server/control" \
    --state-directory "$PWD/state" --export "disk0=$PWD/image" --export "disk1=$PWD/kept"
}

after_restart() {
  truncate -s 1M image kept new
  serve --export "disk0=$PWD/image" --export "disk1=$PWD/kept"
  hold disk0
  mv new image
  stop holder
  stop bridge
  restarted first
  says first.log "warning: export 'disk0': $PWD/image is other storage than before this start: [-0-9a-f]+, which was [-0-9a-f]+; "
  if grep -q "'disk1': .* other storage" first.log; then fail "disk1 is what it was"; fi
  # It is told once.
  stop first
  restarted second
  if grep -q 'other storage' second.log; then fail "that is known"; fi
}
it "a start that finds another file at an export's path than the last one says so, with both UUIDs" after_restart

while_it_runs() {
  truncate -s 1M image kept new
  serve --export "disk0=$PWD/image" --export "disk1=$PWD/kept"
  mv new image
  nbdinfo --size "$(uri_of disk0)"
  says server.log "export 'disk0': its storage is another one now"
  stop bridge
  restarted
  if grep -q 'other storage' again.log; then fail "it was served before already"; fi
}
it "what was served anew while the server ran is no news to its next start" while_it_runs

finish
