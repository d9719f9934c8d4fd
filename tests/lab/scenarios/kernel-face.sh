# shellcheck shell=bash
# rnbd-bridge owns /dev/nbd0: its death and new start, growth, and a server that is away, under load.
# SPDX-License-Identifier: BSD-3-Clause

# shellcheck source=/dev/null
source "$lab_dir/lib/kernel_disk.sh"

queue_is() { [[ $(<"/sys/block/nbd0/queue/$1") == "$2" ]]; }

# complains_of_dead_sockets: that one has ended, and that requests wait for the next one, and nothing else.
complains_of_dead_sockets() {
  complains_only_of 'nbd0: (Receive control failed|Send control failed|Request send failed|Dead connection, failed)'
}

# ---- Map and unmap -----------------------------------------------------------------------------------

partitioned_disk() {
  make_disk
  printf 'start=2048, size=8192, type=83\n' | sfdisk -q /tmp/disk
}
plain_map() {
  partitioned_disk
  serve_disk
  map one
  sectors_are 0 65536
  queue_is io_timeout 900
  grep -q '\[none\]' /sys/block/nbd0/queue/scheduler
  [[ $(</sys/block/nbd0/backend) == rnbd:*-*:one ]]
  head -c 512 /dev/nbd0 >/dev/null # whoever opens it looks for partitions
  eventually 20 test -b /dev/nbd0p1
  fio_verify /dev/nbd0 --size=8m
  stop one
  eventually 20 is_unmapped 0
  # Nothing is left of the name.
  map one
  stop one
}

# ---- kill -9 -----------------------------------------------------------------------------------------

kill_and_map() { # TIMES SECONDS
  local number before seen began late=0
  for ((number = 0; number < $1; ++number)); do
    seen=$(count_probes) began=$EPOCHREALTIME
    killed one
    sleep "$((number % 4))" # the kernel's timer comes before the next bridge, or after it
    map one
    # What it left unanswered is sent again, and more follows.
    before=$(writes_of /dev/nbd0)
    eventually 60 writes_come_after "$before"
    eventually 60 probed_after "$(count_probes)"
    stalled_for "$2" "$number" "$(plus "$(stat -c %.9Y /run/one.pid)" "-$began")" "$(longest_after "$seen")"
  done
  ((late == 0)) || fail "$late times a request took too long"
}
# stalled_for MORE NUMBER AWAY LONGEST: the longest request may take MORE seconds more than the bridge
# was away, and what this CPU is slow.
stalled_for() {
  local slack
  slack=$(plus "$1" "$(time_to_start)")
  echo "kill $2: no bridge for $3 s, the longest request took $4 s, $(plus "$4" "-$3") s more; at most $slack s more"
  at_most "$4" "$(plus "$3" "$slack")" || late=$((late + 1))
}

killed_under_load() { # TIMES SECONDS
  make_disk
  serve_disk
  map one
  dmesg --clear
  under_load probed kill_and_map "$@"
  complains_of_dead_sockets
  no_line 'I/O error'
  stop one
}

# ---- Growth ------------------------------------------------------------------------------------------

grows_to() { # MIB
  truncate -s "$1M" /tmp/disk
  eventually 120 sectors_are 0 "$(($1 * 2048))"
}
grown_while_killed() { # MIB
  killed one
  truncate -s "$1M" /tmp/disk
  map one
  eventually 120 sectors_are 0 "$(($1 * 2048))"
}
last_block_works() { # MIB LETTER
  local place=$(($1 * 16 - 1))
  write_block /dev/nbd0 "$place" "$2"
  block_is /dev/nbd0 "$place" "$2"
  block_is /tmp/disk "$place" "$2"
}
grown() {
  make_disk
  serve_disk
  map one
  under_load grows_to 48
  last_block_works 48 G
  grows_to 56
  grown_while_killed 64
  last_block_works 64 H
  under_load grown_while_killed 72
  last_block_works 72 I
  no_line 'I/O error'
  stop one
}

# ---- The server or the bridge is away ----------------------------------------------------------------

server_is_killed() { # SECONDS
  killed rnbd-server
  sleep "$1"
  serve_disk
}
bridge_stands_still() { # SECONDS
  kill -STOP "$(</run/one.pid)"
  sleep "$1"
  kill -CONT "$(</run/one.pid)"
}
nobody_answers() { # HOW SECONDS
  make_disk
  serve_disk
  map one
  dmesg --clear
  under_load probed "$@"
  echo "$1, $2 s: the longest request took $(longest_after 0) s"
  at_most "$(plus "$2" -2)" "$(longest_after 0)" || fail "somebody has answered meanwhile"
  no_line 'I/O error|reconnected'
  complains_only_of '^$'
  stop one
}

# ---- Hand-over ---------------------------------------------------------------------------------------

# starts_are FILE...: descriptors that the bridge got at each of its starts.
starts_are() { [[ $(paste -s -d ' ' /run/one.starts) == "$1" ]]; }
hand_over() { # TIMES SECONDS
  local number before seen longest pause late=0 starts=0
  for ((number = 0; number < $1; ++number)); do
    seen=$(count_probes) pause=$(plus "$2" "$(time_to_start)")
    rm /run/one.pid
    kill -HUP "$(</run/store.pid)"
    eventually 60 test -s /run/one.pid
    starts+=" 2"
    starts_are "$starts"
    before=$(writes_of /dev/nbd0)
    eventually 60 writes_come_after "$before"
    eventually 60 probed_after "$(count_probes)"
    longest=$(longest_after "$seen")
    echo "hand-over $number: the longest request took $longest s; at most $pause s"
    at_most "$longest" "$pause" || late=$((late + 1))
  done
  ((late == 0)) || fail "$late times a request took too long"
}
handed_over() { # TIMES SECONDS
  make_disk
  serve_disk
  begin_with_store
  dmesg --clear
  under_load probed hand_over "$@"
  # The kernel has noticed nothing. A guest that waits for its CPU can take longer than the kernel's timer, which says so.
  if [[ -n $FULL ]]; then no_line 'nbd0|I/O error'; else no_line 'nbd0: [^P]|I/O error'; fi
  # Killed after a hand-over, it comes by the other way.
  if [[ -n $FULL ]]; then
    under_load killed_by_hand
    grep -q 'reconnected socket' <(dmesg)
  fi
  end_with_store
}
killed_by_hand() {
  local before pid
  pid=$(</run/one.pid)
  rm /run/one.pid
  kill -9 "$pid"
  eventually 60 test -s /run/one.pid
  before=$(writes_of /dev/nbd0)
  eventually 60 writes_come_after "$before"
}

# Nothing is under way: the successor gets the socket, and what comes meanwhile waits in it.
idle_without_server() {
  local writer
  make_disk
  serve_disk
  begin_with_store
  dmesg --clear
  stop rnbd-server
  kill -HUP "$(</run/store.pid)"
  eventually 60 starts_are "0 2"
  write_block /dev/nbd0 5 A & writer=$!
  eventually 60 under_way 1
  serve_disk
  eventually 60 test -s /run/one.pid
  wait "$writer"
  block_is /tmp/disk 5 A
  no_line 'I/O error|reconnected'
  complains_only_of '^$'
  end_with_store
}

# Something is under way, and cannot end: the successor brings another socket, and the kernel sends it again.
busy_without_server() {
  make_disk
  serve_disk
  begin_with_store
  dmesg --clear
  under_load probed hands_over_nothing
  complains_of_dead_sockets
  no_line 'I/O error'
  end_with_store
}
hands_over_nothing() {
  local before
  stop rnbd-server
  kill -HUP "$(</run/store.pid)"
  eventually 60 starts_are "0 0"
  serve_disk
  eventually 60 test -s /run/one.pid
  before=$(writes_of /dev/nbd0)
  eventually 60 writes_come_after "$before"
}

# ---- Whose disk it is --------------------------------------------------------------------------------

refuses() { # NAME STATUS PATTERN
  eventually 60 test -s "/run/$1.status"
  [[ $(<"/run/$1.status") == "$2" ]] || fail "$1 ended with status $(<"/run/$1.status")"
  grep -E "$3" "$1.log"
}

two_disks() {
  make_disk
  make_disk other
  serve_disk /tmp/disk /tmp/other
  map one disk0
  map two disk1
  [[ $(</sys/block/nbd0/backend) == *:one && $(</sys/block/nbd1/backend) == *:two ]]
  write_block /dev/nbd0 3 A
  write_block /dev/nbd1 3 B
  block_is /tmp/disk 3 A
  block_is /tmp/other 3 B
  # The name of one that is served, and a number.
  mv /run/one.pid /run/kept.pid
  begin_map one disk0
  refuses one 1 'is served by another process'
  mv /run/kept.pid /run/one.pid
  write_block /dev/nbd0 4 C
  block_is /tmp/disk 4 C
  # The disk of the dead one is not given to another.
  kill -9 "$(<"/run/one.pid")"
  begin_map one disk1
  refuses one 2 'is another disk'
  map one disk0
  block_is /dev/nbd0 4 C
  # Somebody else unmaps it.
  nbd-client -d /dev/nbd0
  ended_well one
  eventually 20 is_unmapped 0
  stop two
}

without_rights() {
  begin_map early disk0
  make_disk
  serve_disk
  background plain setpriv --bounding-set -sys_admin --inh-caps -sys_admin "$build_dir/bin/rnbd-bridge" \
    --kernel nbd --map-name plain rnbd+tcp://127.0.0.1/disk0
  refuses plain 1 CAP_SYS_ADMIN
  # The other one has begun before its server, and waits for it.
  eventually 60 ready_or_ended early
  stop early
}

# Seconds that a request may take longer than it must. Only the long run measures; what the kernel does
# not notice is shown by its log in both.
kills=1 away=5 more_for_kill=20 more_for_hand_over=20
[[ -z ${FULL:-} ]] || kills=20 away=60 limit=1800 more_for_kill=3 more_for_hand_over=1
boot host
it_full "a disk with partitions is mapped, is what fio has written, and is unmapped" on host plain_map
it "nothing is lost when the bridge is killed under load and starts anew" on host killed_under_load "$kills" "$more_for_kill"
it_full "the disk grows with its export, under load, without, and while nobody serves it" on host grown
it_full "a server that is killed and comes back costs a pause, and no socket" on host nobody_answers server_is_killed "$away"
it_full "nor does a bridge that stands still" on host nobody_answers bridge_stands_still "$away"
it "the next bridge goes on with the socket of the one before, and the kernel notices nothing" on host handed_over "$kills" "$more_for_hand_over"
it_full "nor when the server is away, if nothing is under way" on host idle_without_server
it_full "and if something is, that is sent again" on host busy_without_server
it_full "each name has its own disk, and gets no other one" on host two_disks
it_full "without rights nothing is mapped, and a bridge that is earlier than its server waits for it" on host without_rights
finish
