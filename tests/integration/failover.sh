#!/bin/bash
# Paths die, servers are restarted, frozen and replaced: what the clients of the plugin notice of it.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"
source "${BASH_SOURCE[0]%/*}/load.sh"

# ---- Helpers --------------------------------------------------------------------------------------

# Failures are noticed and repaired faster than by default. A sanitized program answers late.
quick=("heartbeat=$((100 * slow))ms" reconnect-min=20ms reconnect-max=200ms)

path_lost='path to .* is lost'

# crash NAME: the server is killed. What it had begun to write keeps the export locked a little longer.
crash() {
  kill_hard "$1"
  if [[ -e image ]]; then eventually 20 unlocked image; fi
}
unlocked() { ! grep -q ":$(stat -c %i "$1") " /proc/locks; }

# restart_server NUMBER [ARGUMENTS...]: where the last one was.
restart_server() {
  local number=$1
  shift
  server_port=$port server_name=server$number start_server "$@"
}

# ---- The server is restarted ------------------------------------------------------------------------

# Seconds that a write may take longer than its outage: only the long run measures, for the short one
# shares the disk's fsync and two CPUs with other tests.
kills=20 later=$((10 * slow))
[[ -z ${FULL:-} ]] || kills=1000 later=$slow

killed_again_and_again() {
  requires_python nbd
  truncate -s 16M image
  start_server --export "disk0=$PWD/image"
  attach disk0 "${quick[@]}"
  start_writers
  local i began name=server
  for ((i = 1; i <= kills; i++)); do
    began=$EPOCHREALTIME
    crash "$name"
    name=server$i
    restart_server "$i" --export "disk0=$PWD/image"
    echo "$began $EPOCHREALTIME" >>outages
    progress 5
  done
  end_writers
  "$here/stamps.py" stalls outages "$later" || fail "a write took more than $later s longer than its outage"
}
it "the server is killed and started again $kills times under durable writes: no error, nothing lost" \
  killed_again_and_again

larger_limits() {
  requires_python nbd
  truncate -s 16M image
  start_server --export "disk0=$PWD/image" --queue-depth 48 --max-io-size 64K
  attach disk0 "${quick[@]}"
  start_writers
  crash server
  # Other bits of the immediates name the chunk then, and then the same again.
  restart_server 1 --export "disk0=$PWD/image" --queue-depth 300 --max-io-size 128K
  progress 20
  crash server1
  restart_server 2 --export "disk0=$PWD/image" --queue-depth 49 --max-io-size 64K
  progress 20
  end_writers
}
it "a server that comes back with a larger queue depth and larger requests: no error, nothing lost" larger_limits

# user_has TROUBLE: status says so of the one device that is open; "" = it has none.
user_has() {
  limited "${ctl_command[@]}" control --json status | tee status.json
  /usr/bin/python3 -c '
import json, sys
devices = json.load(open("status.json"))["devices"]
[(users, trouble)] = [(d["users"], d["trouble"]) for d in devices]
sys.exit(users != 1 or (sys.argv[1] not in trouble if sys.argv[1] else trouble != ""))
' "$1"
}
smaller_limits() {
  local quick=("${quick[@]}" "control=$PWD/control") why="other limits (queue depth 16, which was 256)"
  image_in_use
  crash server
  restart_server 1 --export "disk0=$PWD/image" --queue-depth 16
  ask write
  [[ $answer == EIO ]] || fail "a write to what is open: $answer"
  eventually 5 grep -qF "$why; those who have something open get EIO until they open it anew" nbdkit.log ||
    fail "the log does not say why"
  user_has "$why" || fail "status does not know who gets EIO"
  writes || fail "a client that comes now is not served"
  ask read
  [[ $answer == EIO ]] || fail "a read of what is open: $answer"
  eventually 5 user_has "$why" # and nobody else: nbdkit may need a moment to close what a client has left
  end_user
  user
  works write
  eventually 5 user_has ""
  end_user
}
it "a server that comes back with a smaller queue depth serves new clients only; log and status say who gets EIO" \
  smaller_limits

two_devices() {
  requires_python nbd
  truncate -s 16M image
  random_file other 1M
  start_server --export "other=$PWD/other" --export "disk0=$PWD/image"
  attach_to "rnbd+tcp://$address" dynamic-export=true "${quick[@]}"
  # They are opened in another order, so that their numbers at the server change hands.
  local all=$uri
  uri="nbd+unix:///disk0?socket=$socket"
  start_writers
  uri="nbd+unix:///other?socket=$socket"
  user
  works read || fail "cannot read"
  crash server
  restart_server 1 --export "other=$PWD/other" --export "disk0=$PWD/image"
  cp other before
  progress 20
  works read || fail "cannot read after the restart"
  works flush || fail "a flush failed, though the machine was not restarted"
  end_writers
  cmp other before
  end_user
  uri=$all
}
it "devices whose numbers change hands when the server is restarted keep their content" two_devices

# other_image MESSAGE: the server comes back with what is in the file `image` now.
other_image() {
  local message=$1
  local old_uri=$uri
  eventually 20 grep -q "$message" nbdkit.log
  ask write
  [[ $answer == EIO ]] || fail "a write to the old device: $answer"
  # A client that comes now may have what is there; the other one keeps failing.
  uri=$old_uri
  nbdsh <<'PY'
h.pwrite(b"new!" * 128, 0)
h.flush()
PY
  ask read
  [[ $answer == EIO ]] || fail "a read of the old device: $answer"
  ask flush
  [[ $answer == EIO ]] || fail "a flush of the old device: $answer"
  end_user
}

# A user of an image of 4 MiB has written to it; then its server is killed.
used_and_crashed() {
  image_in_use
  crash server
}

other_size() {
  used_and_crashed
  truncate -s 8M image
  restart_server 1 --export "disk0=$PWD/image"
  other_image "'disk0' is not what it was: its size was 4194304 and is 8388608"
  [[ $(nbdinfo --size "$uri") == 8388608 ]]
}
it "a server that comes back with another size serves new clients only; the log says why" other_size

# Writers of `disk0` and a user of `other`, in one session.
two_in_use() {
  requires_python nbd
  truncate -s 16M image
  truncate -s 4M other
  start_server --export "disk0=$PWD/image" --export "other=$PWD/other"
  attach_to "rnbd+tcp://$address" dynamic-export=true "${quick[@]}"
  uri="nbd+unix:///disk0?socket=$socket"
  start_writers
  uri="nbd+unix:///other?socket=$socket"
  user
  works write || fail "cannot write"
}

only_one_is_other() {
  two_in_use
  crash server
  truncate -s 8M other
  restart_server 1 --export "other=$PWD/other" --export "disk0=$PWD/image"
  progress 20
  other_image "'other' is not what it was: its size was 4194304 and is 8388608"
  progress 20
  end_writers
}
it "a device that is another one now does not disturb the others of its session" only_one_is_other

# The server forgets the session while the program that has it stands still.
one_is_taken() {
  local mine refused="cannot open 'other' (rw) again: Operation not permitted"
  two_in_use
  mine=$uri
  freeze nbdkit
  crash server
  restart_server 1 --export "disk0=$PWD/image" --export "other=$PWD/other"
  nbdkit_name=taker attach other
  spawn holder /usr/bin/python3 -c '
import sys, time, nbd
h = nbd.NBD()
h.connect_uri(sys.argv[1])
h.pwrite(b"new!" * 1024, 0, nbd.CMD_FLAG_FUA)
time.sleep(1000)' "$uri"
  eventually 20 grep -qa 'new!new!' other
  thaw nbdkit
  eventually 20 grep -qF "$refused; it is tried again" nbdkit.log
  eventually 30 grep -qF "$refused; those who have it open get EIO" nbdkit.log
  progress 20
  ask write
  [[ $answer == EIO ]] || fail "a write to the device that somebody has taken: $answer"
  end_user
  end_writers
  kill_hard holder
  stop taker
  uri=$mine
  nbdsh <<<'assert h.pread(4096, 0) == b"new!" * 1024; h.pwrite(b"mine" * 1024, 0)'
}
it "a device that somebody has taken meanwhile does not disturb the others of its session" one_is_taken

# The lock of the state directory is held, as if its disk hung, so that no turn can be recorded.
directory_hangs() {
  requires_python nbd
  truncate -s 4M image
  random_file other 1M
  start_server --state-directory "$PWD/state" --export "disk0=$PWD/image" --export "other=$PWD/other,ro"
  attach_to "rnbd+tcp://$address" dynamic-export=true "${quick[@]}"
  uri="nbd+unix:///disk0?socket=$socket"
  user
  works write || fail "cannot write"
  spawn reader /usr/bin/python3 -c '
import sys, time, nbd
h = nbd.NBD()
h.connect_uri(sys.argv[1])
while True:
    h.pread(4096, 0)
    open("reads", "a").write("x")
    time.sleep(0.1)' "nbd+unix:///other?socket=$socket"
  eventually 10 test -s reads
  crash server
  spawn holder /usr/bin/python3 -c '
import fcntl, sys, time
lock = open(sys.argv[1])
fcntl.flock(lock, fcntl.LOCK_EX)
time.sleep(1000)' state/writers/.lock
  eventually 10 grep -q "FLOCK.*:$(stat -c %i state/writers/.lock) " /proc/locks
  restart_server 1 --state-directory "$PWD/state" --export "disk0=$PWD/image" --export "other=$PWD/other,ro"
  : >reads
  eventually 25 test -s reads
  says server1.log "refused to open 'disk0': cannot record who writes to it"
  says nbdkit.log "cannot open 'disk0' [(]rw[)] again: Resource temporarily unavailable; it is tried again"
  eventually 5 grep -qF "(rw) again: Resource temporarily unavailable; those who have it open get EIO" nbdkit.log
  ask write
  [[ $answer == EIO ]] || fail "a write to the device that cannot be opened: $answer"
  end_user
  kill_hard holder
  eventually 20 writes
  kill_hard reader
}
it "a device whose turn cannot be recorded does not keep the others of its session waiting" directory_hangs

other_file() {
  used_and_crashed
  truncate -s 4M other
  restart_server 1 --export "disk0=$PWD/other"
  other_image "'disk0' is not what it was: it is other storage"
  cmp -n 4096 image <(yes x | tr -d '\n' | head -c 4096)
}
it "a server that comes back with another file of the same size does so, too" other_file

# disk_in_use: a server of the loop device on the file `one`, by way of the link `disk`, attached and written to by a
# user; then the server is killed. The device is in $device.
disk_in_use() {
  ((EUID == 0)) || skip "only root can make loop devices"
  requires_python nbd
  truncate -s 4M one two
  device=$(losetup --find --show "$PWD/one" 2>/dev/null) || skip "no loop devices here"
  at_end detach_all
  ln -s "$device" disk
  start_server --export "disk0=$PWD/disk"
  attach disk0 "${quick[@]}"
  user
  works write || fail "cannot write"
  works flush || fail "cannot flush"
  crash server
}
detach_all() {
  local file
  for file in one two; do
    losetup -j "$PWD/$file" | cut -d: -f1 | xargs -r losetup -d
  done
}

other_disk_same_number() {
  disk_in_use
  losetup -d "$device"
  eventually 10 losetup "$device" "$PWD/two"
  restart_server 1 --export "disk0=$PWD/disk"
  other_image "'disk0' is not what it was: it is other storage"
  cmp -n 4096 one <(yes x | tr -d '\n' | head -c 4096)
}
it "another disk that has the number now does so, too" other_disk_same_number

same_disk_other_number() {
  disk_in_use
  local old=$device
  losetup -d "$old"
  eventually 10 losetup "$old" "$PWD/two"
  device=$(losetup --find --show "$PWD/one")
  [[ $device != "$old" ]] || fail "it has the same number"
  ln -sf "$device" disk
  restart_server 1 --export "disk0=$PWD/disk"
  works read || fail "cannot read"
  works write || fail "cannot write"
  end_user
  cmp -n 4096 one <(yes x | tr -d '\n' | head -c 4096)
  cmp two <(head -c 4M /dev/zero)
}
it "a disk that has another number now is the same disk" same_disk_other_number

# One connection's flush fails, another one with answered writes is not told before the server ends.
failed_flush() {
  local server_command=("${server_command[@]}") library=${RNBD_FAILING_FLUSH:-$build_dir/tests/integration/libfailing_flush.so}
  [[ -z $sanitizer ]] || skip "a sanitizer wants to be the first library"
  requires_python nbd
  truncate -s 4M image
  server_command=(env "LD_PRELOAD=$library" "RNBD_FAIL_FLUSH=$PWD/fail" "${server_command[@]}" --no-uring)
  start_server --export "disk0=$PWD/image"
  attach disk0 "${quick[@]}"
  spawn two /usr/bin/python3 -c '
import os, sys, time, nbd
def error_of(call):
    try:
        call()
    except nbd.Error as error:
        return error.errno
other, one = nbd.NBD(), nbd.NBD()
other.connect_uri(sys.argv[1])
one.connect_uri(sys.argv[1])
other.pwrite(bytes(4096), 8192)
open("fail", "w").close()
assert error_of(one.flush) == "EIO"
assert error_of(one.flush) == "EIO"
open("failed", "w").close()
while os.path.exists("failed"):
    time.sleep(0.02)
assert error_of(other.flush) == "EIO", "it was not told"
other.pwrite(bytes(4096), 8192)
assert error_of(other.flush) is None, "it is told once"' "$uri"
  eventually 20 test -e failed
  crash server
  restart_server 1 --export "disk0=$PWD/image"
  rm failed
  wait_end two $((20 * slow)) || fail "it still waits"
  cat two.log
  ((status == 0)) || fail "it left with $status"
}
it "a flush that failed is not forgotten when the server is killed" failed_flush

# An NBD server that writes late is killed while nobody uses it, because the client stands still: what the client comes back
# to has lost what it had not flushed. rnbd-server lives, and so does its machine.
upstream_restarted() {
  requires_python nbd
  truncate -s 4M upstream
  local upstream=(--filter=cache file "$PWD/upstream" cache=writeback)
  nbdkit_name=upstream start_nbdkit "${upstream[@]}"
  start_server --heartbeat "$((100 * slow))ms" --export "disk0=$uri"
  attach disk0 "${quick[@]}" no-path-timeout=60s
  user
  works write
  works flush
  works write
  freeze nbdkit
  eventually 30 grep -q "the session is forgotten" server.log
  kill_hard upstream
  eventually 10 grep -q "the NBD server is lost" server.log
  local user_of=$uri
  nbdkit_name=upstream start_nbdkit "${upstream[@]}"
  uri=$user_of
  thaw nbdkit
  ask flush
  [[ $answer == EIO ]] || fail "the flush hides that a write is lost"
  says nbdkit.log "lost its own connection to the storage: writes to 'disk0' .* may be lost"
  works write
  works flush
  end_user
  stop nbdkit
  stop server # nbdkit waits for its clients
}
it "an NBD upstream that has lost what was not flushed makes the next flush fail, once" upstream_restarted

gone() {
  used_and_crashed
  restart_server 1 --export "disk1=$PWD/image"
  eventually 20 grep -q "'disk0' (rw) is gone from the server" nbdkit.log
  ask write
  [[ $answer == EIO ]] || fail "a write to a device that is gone: $answer"
  end_user
}
it "a device that is gone when the server comes back is EIO; the log says so" gone

# ---- The server is silent ---------------------------------------------------------------------------

frozen_briefly() {
  requires_python nbd
  truncate -s 16M image
  start_server --export "disk0=$PWD/image"
  attach disk0 "${quick[@]}" no-path-timeout=60s
  start_writers
  freeze server
  eventually 20 grep -q "$path_lost" nbdkit.log
  thaw server
  progress 20
  end_writers
}
it "a server that is frozen until its path counts as dead costs time, but no error" frozen_briefly

frozen_for_long() {
  requires_python nbd
  truncate -s 4M image
  start_server --export "disk0=$PWD/image"
  attach disk0 "${quick[@]}" no-path-timeout=1s
  user
  works write || fail "cannot write"
  freeze server
  ask write
  [[ $answer == EIO ]] || fail "got $answer"
  # The path counts as dead after at most six intervals; then the waiting begins.
  awk -v t="$took" 'BEGIN { exit !(t >= 1) }' || fail "that was too early"
  at_most "$took" 3 || fail "that was too late"
  thaw server
  eventually 20 works write
  works flush || fail "cannot flush"
  end_user
}
it "a server that is frozen for longer than no-path-timeout is EIO on time; then service resumes" \
  frozen_for_long

error_of_choice() {
  requires_python nbd
  truncate -s 4M image
  start_server --export "disk0=$PWD/image"
  attach disk0 "${quick[@]}" no-path-timeout=300ms no-path-error="$1"
  user
  works write || fail "cannot write"
  freeze server
  for request in write read flush; do
    ask "$request"
    [[ $answer == "$1" ]] || fail "$request: got $answer"
  done
  thaw server
  eventually 20 works write
  end_user
}
it "no-path-error=ENOSPC: that is what requests fail with then, as qemu stops for" error_of_choice ENOSPC
it "no-path-error=ESHUTDOWN" error_of_choice ESHUTDOWN

leaves() {
  requires_python nbd
  start_server --export disk0=memory:4M
  attach disk0 "${quick[@]}" no-path-timeout=0
  spawn client /usr/bin/python3 -c '
import sys, nbd
h = nbd.NBD()
h.connect_uri(sys.argv[1])
h.pread(512, 0)
open("reads", "w").close()
while True: h.pread(512, 0)
' "$uri"
  eventually 20 test -e reads
  crash server
  eventually 20 grep -q "$path_lost" nbdkit.log
  stop nbdkit
  wait_end client 20 || fail "the client still waits"
}
it "SIGTERM of nbdkit while no path works and requests wait for ever: it leaves within 5 s" leaves

# ---- Two paths --------------------------------------------------------------------------------------

one_is_cut() {
  requires_python nbd
  truncate -s 16M image
  start_server --export "disk0=$PWD/image"
  local first second
  start_forward 127.0.0.1
  first=$forward_port
  start_forward 127.0.0.2
  second=$forward_port
  attach_to "rnbd+tcp://127.0.0.1:$first/disk0" "path=127.0.0.2:$second" \
    policy=round-robin "${quick[@]}"
  start_writers 65536
  carries 127.0.0.1 2000000
  carries 127.0.0.2 2000000
  end_forward 127.0.0.2
  progress 20
  start_forward 127.0.0.2 "$second"
  carries 127.0.0.2 2000000
  end_forward 127.0.0.1
  progress 20
  start_forward 127.0.0.1 "$first"
  carries 127.0.0.1 2000000
  end_writers
  at_most "$longest" 3.5 || fail "a write took $longest s, and one path always worked"
  stop nbdkit
  end_forward 127.0.0.1
  end_forward 127.0.0.2
}
it "of two paths one is cut, then the other: no error, nothing lost, and both are used again" one_is_cut

one_is_frozen() {
  requires_python nbd
  truncate -s 16M image
  start_server --export "disk0=$PWD/image"
  start_forward 127.0.0.1
  local first=$forward_port
  start_forward 127.0.0.2
  attach_to "rnbd+tcp://127.0.0.1:$first/disk0" "path=127.0.0.2:$forward_port" \
    policy=round-robin "${quick[@]}"
  start_writers 65536
  freeze forward127.0.0.2
  progress 20
  thaw forward127.0.0.2
  carries 127.0.0.2 2000000
  end_writers
  at_most "$longest" 3.5 || fail "a write took $longest s, and one path always worked"
  stop nbdkit
  end_forward 127.0.0.1
  end_forward 127.0.0.2
}
it "of two paths one says nothing any more: the other takes over, and both are used again" one_is_frozen

# Under load the others carry enough to make the path look alive; what goes over connection 0 must not wait for ever.
control_is_mute() {
  requires_python nbd
  truncate -s 16M image
  start_server --export "disk0=$PWD/image" --export other=memory:1M
  start_forward 127.0.0.1
  attach_to "rnbd+tcp://127.0.0.1:$forward_port" dynamic-export=true "${quick[@]}"
  uri="nbd+unix:///disk0?socket=$socket"
  start_writers
  touch mute.127.0.0.1
  progress 20
  limit=10 nbdinfo --size "nbd+unix:///other?socket=$socket"
  eventually 20 grep -q "a connection that owes answers carries nothing" nbdkit.log
  progress 20
  end_writers
  rm mute.127.0.0.1
  stop nbdkit
  end_forward 127.0.0.1
}
it "connection 0 of a path says nothing while the others carry: the path is given up, and devices are opened" control_is_mute

# Every one of them ends its connection, whichever byte it hits; and nothing that comes of it is a wrong byte. TCP's
# checksum does not see them: they are in what is sent.
bits_flip() {
  requires_python nbd
  local flips=20 to_server to_client ready_read ready_write
  [[ -z ${FULL:-} ]] || flips=1000
  truncate -s 16M image
  start_server --export "disk0=$PWD/image"
  pipe ready_read ready_write
  spawn damage /usr/bin/python3 -B "$here/damage.py" "$port" "$flips" "$ready_write"
  exec {ready_write}>&-
  await_line "$ready_read" 20
  exec {ready_read}<&-
  attach_to "rnbd+tcp://127.0.0.1:$line/disk0" "${quick[@]}" no-path-timeout=0
  start_writers 16384
  touch begin
  eventually $((60 + flips)) flips_ended
  read -r to_server to_client <flipped
  end_writers
  stop nbdkit
  kill_hard damage
  # Who finds it says so. Of many the logs leave out some.
  [[ -z ${FULL:-} ]] || return 0
  [[ $(grep -c 'damaged on the way' server.log) == "$to_server" ]] || fail "not all that went to the server"
  [[ $(grep -c 'damaged on the way' nbdkit.log) == "$to_client" ]] || fail "not all that went to the client"
}
flips_ended() {
  [[ ! -s damage.log ]] || fail "$(<damage.log)"
  [[ -e flipped ]]
}
it "bits that flip on the way: each is found, at no cost but its connection" bits_flip

finish
