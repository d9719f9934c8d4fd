#!/bin/bash
# Who may open what: exclusive writers, readers beside them, migration, names, the search path.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"

# python ARGUMENTS...: Python with libnbd; `connect(uri)` returns a handle.
python() {
  requires_python nbd
  limited /usr/bin/python3 <(
    cat <<'PY'
import errno, os, sys, nbd
def connect(uri):
    h = nbd.NBD()
    h.connect_uri(uri)
    return h
def refused(uri):
    try:
        connect(uri)
    except nbd.Error as error:
        print("refused:", error)
    else:
        raise AssertionError("the connection was accepted")
PY
    cat
  ) "$@"
}

second_writer() {
  random_file image 1M
  start_server --export "disk0=$PWD/image"
  nbdkit_name=first attach disk0
  local first=$uri
  nbdkit_name=second attach disk0 access=rw
  local second=$uri
  nbdkit_name=reader attach disk0 access=ro
  python "$first" "$second" "$uri" <<'PY'
writer = connect(sys.argv[1])
writer.pwrite(b"first" + bytes(507), 0)
refused(sys.argv[2])
reader = connect(sys.argv[3])
assert reader.is_read_only()
assert reader.pread(512, 0)[:5] == b"first"
writer.pwrite(b"again" + bytes(507), 0)
assert reader.pread(512, 0)[:5] == b"again"
PY
  stop first
  python "$second" <<'PY'
connect(sys.argv[1]).pwrite(b"other" + bytes(507), 0)
PY
}
it "a second writer is refused until the first has left; readers are welcome" second_writer

same_file_twice() {
  random_file image 1M
  start_server --export "one=$PWD/image" --export "two=$PWD/image"
  nbdkit_name=first attach one
  local first=$uri
  nbdkit_name=second attach two access=rw
  python "$first" "$uri" <<'PY'
writer = connect(sys.argv[1])
writer.pwrite(bytes(512), 0)
refused(sys.argv[2])
PY
}
it "one file under two names still has one writer" same_file_twice

migration() {
  random_file image 1M
  start_server --export "disk0=$PWD/image" --control "$PWD/control"
  nbdkit_name=source attach disk0
  local source=$uri
  nbdkit_name=target attach disk0 access=migration
  local target=$uri
  nbdkit_name=third attach disk0 access=migration
  python "$source" "$target" "$uri" "${ctl_command[@]}" --json "$PWD/control" status <<'PY'
import json, subprocess, time
def access():
    devices = json.loads(subprocess.check_output(sys.argv[4:]))["devices"]
    return sorted(each["access_mode"] for each in devices)
source = connect(sys.argv[1])
source.pwrite(b"source" + bytes(506), 0)
target = connect(sys.argv[2])
assert access() == ["migration", "rw"], access()
assert target.pread(512, 0)[:6] == b"source"
target.pwrite(b"target" + bytes(506), 0)
assert source.pread(512, 0)[:6] == b"target"
refused(sys.argv[3])
source.shutdown()
deadline = time.monotonic() + 10
while access() != ["rw"]:
    assert time.monotonic() < deadline, access()
    time.sleep(0.05)
PY
}
it "migration: the new host may write beside the old one, a third may not; then it is rw" migration

# The source is away, and may come back and write.
migration_restart() {
  random_file image 1M
  mkdir state
  local server=(start_server --export "disk0=$PWD/image" --control "$PWD/control" --state-directory "$PWD/state")
  "${server[@]}"
  nbdkit_name=source attach disk0
  local source=$uri
  nbdkit_name=target attach disk0 access=migration
  spawn source-client /usr/bin/python3 -u -c "$writer" "$source"
  wait_for_line source-client.out holds
  spawn target-client /usr/bin/python3 -u -c "$writer" "$uri"
  wait_for_line target-client.out holds
  accesses migration rw
  kill -STOP "${pid[source]}"
  kill -KILL "${pid[server]}"
  wait_end server 10
  server_port=$port "${server[@]}"
  eventually 20 accesses migration
  sleep 1
  accesses migration
  kill -CONT "${pid[source]}"
  eventually 20 accesses migration rw
  stop source-client
  stop source
  eventually 20 accesses rw
}
writer='import nbd, signal, sys
h = nbd.NBD()
h.connect_uri(sys.argv[1])
h.pwrite(b"x" * 512, 0)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("holds")
signal.pause()'
accesses() {
  [[ $("${ctl_command[@]}" --json "$PWD/control" status | limited /usr/bin/python3 -c 'import json, sys
print(*sorted(each["access_mode"] for each in json.load(sys.stdin)["devices"]))') == "$*" ]]
}
it "... and stays migration after a restart of the server until the old one has come and left" migration_restart

read_only_export() {
  random_file image 1M
  start_server --export "disk0=$PWD/image,ro"
  attach disk0 access=rw
  fails nbdinfo "$uri"
  says nbdkit.log 'disk0.*Read-only'
  stop nbdkit
  attach disk0
  nbdinfo "$uri" | tee info
  says info 'is_read_only: true'
}
it "access=rw of a read-only export fails and says why; without it the export is read-only" read_only_export

read_only_crowd() {
  random_file image 1M
  start_server --export "disk0=$PWD/image,ro"
  attach disk0
  python "$uri" <<'PY'
clients = [connect(sys.argv[1]) for _ in range(3)]
assert all(client.is_read_only() for client in clients)
assert len({bytes(client.pread(4096, 0)) for client in clients}) == 1
PY
}
it "several clients of one nbdkit read a read-only export at the same time" read_only_crowd

yields() {
  mkdir files
  truncate -s 1M files/file
  start_server --reactors 4 --search-path "$PWD/files" --export disk0=memory:1M \
    --export slow=delay:write=3s:memory:1M
  PYTHONPATH=$source_dir/tests/integration PYTHONDONTWRITEBYTECODE=1 limited /usr/bin/python3 - "$port" <<'PY'
import errno, struct, sys, time
from raw_peer import RW, USER_MESSAGES, WRITE_IO, Session

port = int(sys.argv[1])
EXACTLY_ONCE = 1

def connect():
    return Session(port, features=USER_MESSAGES | EXACTLY_ONCE)

def open_by_another(name, patience):
    """The errno of an OPEN by somebody else, 0 at once when there is one within `patience`."""
    other, end = connect(), time.monotonic() + patience
    while True:
        try:
            other.open(name, RW)
            return 0
        except OSError as error:
            if time.monotonic() > end:
                return error.errno

for name in b"disk0", b"file":
    first = connect()
    first.open(name, RW)
    assert open_by_another(name, 0) == errno.EPERM, name
    first.close()  # without a goodbye: the session waits for 4 s
    began = time.monotonic()
    assert open_by_another(name, 3) == 0, name
    assert time.monotonic() - began < 3, name

first = connect()
device, _ = first.open(b"slow", RW)
first.start_write(first.io(device, WRITE_IO, 0, 512) + struct.pack("<IHH", 1, 0, 0), bytes(512))
first.close()
assert open_by_another(b"slow", 1) == errno.EPERM, "the write still runs"
assert open_by_another(b"slow", 3) == 0
PY
  says server.log "has no path and is ended: '.*' \(127\.0\.0\.1:[0-9]+\) wants to write to 'disk0', which it has open"
}
it "a client without paths keeps its right to write until somebody else asks, or its writes have ended" yields

listing() {
  start_server --export "alpha=memory:1M,description=the first" --export beta=memory:2M \
    --export gamma=memory:3M,ro
  start_nbdkit "$plugin" "server=$address" dynamic-export=true
  nbdinfo --list "$uri" | tee list
  says list 'export="alpha"'
  says list 'description: the first'
  says list 'export="beta"'
  says list 'export="gamma"'
  says list 'export-size: 2097152'
  [[ $(nbdinfo --size "nbd+unix:///gamma?socket=$socket") == 3145728 ]]
  fails nbdinfo "nbd+unix:///delta?socket=$socket"
  says fails.out 'nbdinfo'
  [[ $(nbdinfo --size "nbd+unix:///alpha?socket=$socket") == 1048576 ]]
}
it "dynamic-export lists the server's exports and opens them by name" listing

many_exports() {
  local i arguments=()
  for i in {001..300}; do arguments+=(--export "export-with-a-rather-long-name-$i=null:1M"); done
  start_server "${arguments[@]}"
  start_nbdkit "$plugin" "server=$address" dynamic-export=true
  python "$uri" <<'PY'
h = nbd.NBD()
h.set_opt_mode(True)
h.connect_uri(sys.argv[1])
names = []
h.opt_list(lambda name, description: names.append(name))
assert len(names) == 300 and names[299] == "export-with-a-rather-long-name-300", len(names)
h.opt_abort()
PY
}
it "300 exports are listed completely" many_exports

search_path() {
  mkdir -p tree/inner
  random_file tree/inner/disk 1M
  random_file outside 1M
  ln -s ../../outside tree/inner/link
  ln -s "$PWD" tree/away
  mkfifo tree/fifo
  start_server --search-path "$PWD/tree"
  start_nbdkit "$plugin" "server=$address" dynamic-export=true
  nbdcopy "nbd+unix:///inner/disk?socket=$socket" copy
  cmp tree/inner/disk copy
  local name
  for name in inner/link away/outside ../outside inner/../../outside fifo inner "$PWD/outside" \
    /etc/passwd /dev/null; do
    echo "--- $name"
    fails nbdinfo "nbd+unix:///$name?socket=$socket"
  done
  nbdinfo --size "nbd+unix:///inner/disk?socket=$socket"
}
it "the search path opens files below it, and nothing outside, through links, dots or devices" search_path

search_path_per_session() {
  mkdir -p tree/one tree/two
  random_file tree/one/disk 1M
  random_file tree/two/disk 2M
  start_server --search-path "$PWD/tree/%SESSNAME%"
  nbdkit_name=first attach disk session=one
  [[ $(nbdinfo --size "$uri") == 1048576 ]]
  nbdkit_name=second attach disk session=two
  [[ $(nbdinfo --size "$uri") == 2097152 ]]
  nbdkit_name=third attach disk session=three
  fails nbdinfo "$uri"
}
it "with %SESSNAME% each session has a directory of its own" search_path_per_session

slashes() {
  mkdir -p tree/dev
  random_file tree/dev/sdb 1M
  start_server --search-path "$PWD/tree"
  attach dev/sdb
  nbdcopy "$uri" copy
  cmp tree/dev/sdb copy
}
it "a device name may have slashes" slashes

# One file hangs in open(2); whoever wants it is told so in time, and nobody else notices.
hanging_file() {
  local server_command=("${server_command[@]}") library=${RNBD_HANGING_OPEN:-$build_dir/tests/integration/libhanging_open.so} i
  [[ -z $sanitizer ]] || skip "a sanitizer wants to be the first library"
  mkdir tree
  truncate -s 1M tree/stuck tree/healthy
  touch tree/stuck.hangs
  server_command=(env "LD_PRELOAD=$library" "${server_command[@]}")
  start_server --search-path "$PWD/tree" --export named=memory:2M
  # Who is refused for now asks again within connect-timeout, which is over when the server answers.
  nbdkit_name=first attach_to "rnbd+tcp://$address" dynamic-export=true connect-timeout=2s
  local stuck="nbd+unix:///stuck?socket=$socket" healthy="nbd+unix:///healthy?socket=$socket"
  nbdkit_name=second attach_to "rnbd+tcp://$address" dynamic-export=true connect-timeout=2s
  for i in 1 2 3 4 5 6; do spawn "asker$i" nbdinfo --size "$stuck"; done
  spawn stranger nbdinfo --size "nbd+unix:///stuck?socket=$socket"
  eventually 20 opens_hang
  limit=4 nbdinfo --size "nbd+unix:///healthy?socket=$socket"
  for i in asker{1,2,3,4,5,6} stranger; do
    wait_end "$i" $((15 * slow)) || fail "$i still waits"
    ((status != 0)) || fail "$i has opened what hangs"
  done
  eventually 5 grep -q "refused to open 'stuck': opening its file hangs" server.log
  # The client has its ways to open things again, and is refused what hangs still.
  limit=4 nbdinfo --size "$healthy"
  limit=4 nbdinfo --size "nbd+unix:///named?socket=$socket"
  limit=20 fails nbdinfo "$stuck"
  rm tree/stuck.hangs
  eventually 10 opened "$stuck"
}
# Whoever is inside has a descriptor of the file.
opens_hang() {
  local descriptor
  for descriptor in "/proc/${pid[server]}/fd/"*; do
    [[ $(readlink "$descriptor") != */tree/stuck ]] || return 0
  done
  return 1
}
opened() { [[ $(nbdinfo --size "$1" 2>/dev/null) == 1048576 ]]; }
it "a file below the search path that hangs is refused in time, and others are opened" hanging_file

taken_session_name() {
  start_server --export disk0=memory:1M --export disk1=memory:1M
  nbdkit_name=first attach disk0 session=host-a
  local first=$uri
  nbdkit_name=second attach disk1 session=host-a
  python "$first" "$uri" <<'PY'
holder = connect(sys.argv[1])
refused(sys.argv[2])
PY
}
it "a session name that another client has is refused" taken_session_name

# listens_with OPTIONS... -- PARAMETERS...: an nbdkit over TCP on a free port; its log is complete
# when it has its control socket.
listens_with() {
  local options=()
  while [[ $1 != -- ]]; do options+=("$1") && shift; done
  spawn open "${nbdkit_command[@]}" -f -p 0 "${options[@]}" "$plugin" "rnbd+tcp://127.0.0.1:$port/disk0" \
    "control=$PWD/control" "${@:2}"
  eventually 20 limited "${ctl_command[@]}" "$PWD/control" help
}
open_to_everybody() {
  start_server --export disk0=memory:1M
  listens_with --
  says open.log 'listens on .* port [0-9]+.*whoever reaches it may write to the device; give nbdkit -U SOCKET'
  stop open
  local quiet
  for quiet in '-i 127.0.0.1 --' '-i ::1 --' '-- access=ro'; do
    # shellcheck disable=SC2086
    listens_with $quiet
    if grep 'whoever reaches' open.log; then fail "it warns with $quiet"; fi
    stop open
  done
}
it "nbdkit that listens for everybody, and may write, is warned of" open_to_everybody

finish
