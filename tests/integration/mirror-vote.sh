#!/bin/bash
# A mirror of two disks beside a third server that has only a vote: each row of the table in docs/mirror.md,
# "A vote", and what people see of it.
# LOSSES=N: how often a disk is lost together with the client. FULL=1: also the cases that wait longest.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"

member_program=$(realpath "${BASH_SOURCE[0]%/*}")/mirror_member.py
losses=${LOSSES:-${FULL:+300}}
losses=${losses:-2}
declare -A port_of

# start NAME: the server of a disk (a, b), or that of the vote (w), at the same port as before.
start() {
  local what=(--votes on)
  if [[ $1 != w ]]; then
    [[ -e $1.img ]] || truncate -s 16M "$1.img"
    what=(--export "disk0=$PWD/$1.img")
  fi
  server_name=$1 server_port=${port_of[$1]:-0} start_server \
    --state-directory "$PWD/state-$1" --control "$PWD/control-$1" "${what[@]}"
  port_of[$1]=$port
}
image() {
  truncate -s 16M "$1.img"
  echo "$PWD/$1.img"
}
server_of() { echo "127.0.0.1:${port_of[$1]}"; }
# start_all [OPTION...]: sets $mirror, its URI.
start_all() {
  start a && start b && start w
  mirror="rnbd-mirror+tcp://$(server_of a),$(server_of b)/disk0?vote=$(server_of w)"
  local option
  for option; do mirror+="&$option"; done
}

# A client of its own number, since each one is killed.
clients=0
start_client() {
  clients=$((clients + 1))
  client=client$clients
  bridge_name=$client start_bridge "$mirror" --connect lazy --control "$PWD/control" \
    --no-path-timeout 0 --reconnect-max 200ms "$@"
}
says() { "${ctl_command[@]}" --json "$PWD/control" mirror status | jq -r "$1"; }
# states_are "STATE,STATE,STATE": of a, b and the vote.
states_are() { [[ $(says '[.members[].state] | join(",")') == "$1" ]]; }
is_whole() { [[ $(says '[.unequal_mib] + [.members[].state] | map(tostring) | join(",")') == "0,in step,in step,in step" ]]; }
begin_whole() {
  start_all "$@"
  start_client
  put 1
  eventually 60 is_whole
}

# kill_at_once NAME...: before anybody has noticed the first one's end.
kill_at_once() {
  local name
  for name; do kill -KILL "${pid[$name]}"; done
  for name; do wait_end "$name" 10 || fail "$name survived SIGKILL"; done
}

# put NUMBER: a durable write, with this number in each block. got NUMBER: it is there.
put() {
  nbdsh <<PYTHON
for place in 0, 5 << 20: h.pwrite(($1).to_bytes(8, "little") * 8192, place, nbd.CMD_FLAG_FUA)
PYTHON
}
got() {
  nbdsh <<PYTHON
for place in 0, 5 << 20: assert h.pread(65536, place) == ($1).to_bytes(8, "little") * 8192, "other data"
PYTHON
}
# waits: a request has no answer. A client goes on without silent members after 3 s, and without one that
# others may read from after 1.25 s more.
waits() {
  local status=0
  limit=8 nbdsh <<<'h.pread(512, 0)' >waits.log 2>&1 || status=$?
  ((status == 124))
}
# within SECONDS COMMAND...: it has succeeded by then.
within() {
  local began=$EPOCHREALTIME took
  "${@:2}"
  took=$(bc <<<"$EPOCHREALTIME - $began")
  (($(bc <<<"$took <= $1 * $slow"))) || fail "$2 took $took s, not $1"
  echo "took ${took} s"
}
end_client() { stop "$client" 20; }
# lacks TEXT FILE: that is there, and has something else.
lacks() {
  [[ -s $2 ]] || fail "$2 is empty"
  ! grep -F -- "$1" "$2" || fail "$2 has $1"
}

# ---- What people see ----------------------------------------------------------------------------

seen() {
  begin_whole
  [[ $(says '.members[2].server') == "$(server_of w)" ]] || fail "$(says .)"
  [[ $(says '.members[2].role') == vote && $(says '.members[0].role') == null ]] || fail "$(says .)"
  [[ $(says .uri) == *"vote=$(server_of w)"* ]] || fail "$(says .uri)"
  [[ $(limited "${ctl_command[@]}" --json "$PWD/control-w" member list |
    jq -r '.members[] | .member, .in_step') == $'vote\n1,2,vote' ]] ||
    fail "$("${ctl_command[@]}" "$PWD/control-w" member list)"
  [[ $("${ctl_command[@]}" --json "$PWD/control-a" member list | jq -r '.members[].in_step') == 1,2,vote ]] ||
    fail "$("${ctl_command[@]}" "$PWD/control-a" member list)"
  # No list has it.
  [[ $("${ctl_command[@]}" --json "$PWD/control-w" status | jq -c .exports) == '[]' ]] ||
    fail "the status has an export: $("${ctl_command[@]}" --json "$PWD/control-w" status)"
  server_name=both start_server --state-directory "$PWD/state-both" --votes on --export "disk7=$(image both)"
  bridge_name=looker start_bridge "rnbd+tcp://127.0.0.1:$port"
  limited nbdinfo --list "$uri" >list.txt || fail "it gives no list"
  grep -F disk7 list.txt || fail "the list has not the disk: $(cat list.txt)"
  lacks .vote list.txt
  stop looker && stop both
  # Nobody opens it as a disk.
  bridge_name=plain start_bridge "rnbd+tcp://$(server_of w)/.vote" --connect lazy
  ! limited nbdinfo "$uri" >plain.out 2>&1 || fail "it was opened"
  grep -F 'it is no disk' w.log || fail "the server does not say why: $(cat w.log)"
  stop plain
  # A claim of its own mirror holds it until the client ends.
  local vote
  vote=$("${ctl_command[@]}" --json "$PWD/control-w" member list | jq -r '.members[].export')
  ! "${ctl_command[@]}" "$PWD/control-w" member free "$vote" --force 2>free.err || fail "it was freed"
  grep -F 'a client of the mirror has it' free.err || fail "$(cat free.err)"
  end_client
  ! "${ctl_command[@]}" "$PWD/control-w" member free "$vote" 2>free.err || fail "it was freed"
  grep -F 'in step' free.err || fail "$(cat free.err)"
  "${ctl_command[@]}" "$PWD/control-w" member free "$vote" --force || fail "it cannot be freed"
  [[ $("${ctl_command[@]}" --json "$PWD/control-w" member list | jq '.members | length') == 0 ]] ||
    fail "it is there still"
}
it "the vote is seen where members are, and is no disk" seen

mistakes() {
  start_all
  ! limited "${server_command[@]}" --listen tcp:127.0.0.1:0 --votes maybe --state-directory x 2>mistake.log ||
    fail "a word for votes was taken that means nothing"
  grep -F 'write on' mistake.log || fail "$(cat mistake.log)"
  ! limited "${bridge_command[@]}" --listen unix:x.sock "${mirror/vote=*/vote=$(server_of a)}" 2>mistake.log ||
    fail "a server has a disk and the vote"
  grep -F 'name another one' mistake.log || fail "$(cat mistake.log)"
  ! limited "${bridge_command[@]}" --listen unix:x.sock "rnbd+tcp://$(server_of a)/disk0?vote=$(server_of w)" \
    2>mistake.log || fail "one disk has a vote"
  grep -F 'only a mirror has that' mistake.log || fail "$(cat mistake.log)"
  # The same server by another address: the disk is used, and not the vote, whichever is there first.
  start_client
  put 1
  eventually 60 is_whole
  end_client
  mirror=${mirror/vote=*/vote=localhost:${port_of[b]}}
  local attempt
  for attempt in 1 2 3; do
    start_client
    put "$attempt"
    eventually 20 states_are "in step,in step,away"
    eventually 20 vote_is_twin
    end_client
  done
  # A server that has none.
  mirror="rnbd-mirror+tcp://$(server_of a),127.0.0.1:1/disk0?vote=$(server_of b)"
  start_client
  nbdsh <<<'pass' >open.log 2>&1 &
  attempt=$!
  eventually 20 no_votes_there
  end_client
  wait "$attempt" || true
}
vote_is_twin() { [[ $(says '.members[2].trouble') == *"same server as $(server_of b)"* ]]; }
no_votes_there() { [[ $(says '.members[2].trouble') == *'has no votes'* ]]; }
it "mistakes are named" mistakes

# Clients of the version before, and of this one, byte by byte.
by_bytes() {
  truncate -s 8M disk.img
  start_server --state-directory "$PWD/state" --votes on --export "disk0=$PWD/disk.img"
  limit=60 limited /usr/bin/python3 -B "$member_program" "$port" votes || fail "a client of votes"
  grep -F 'its mirror has a vote, and its client is of an older version' server.log || fail "the log says nothing"
  grep -F "it is no disk" server.log || fail "the log says nothing of the OPEN"
}
it "a newer term has the vote at once, and clients that know no votes are refused in words" by_bytes

# ---- The table ----------------------------------------------------------------------------------

# loses_one NAME STATES: it is killed, and the others go on.
loses_one() {
  begin_whole
  kill_hard "$1"
  within 10 put 2
  eventually 20 states_are "$2"
  start "$1"
  eventually 60 is_whole
  got 2
  end_client
  cmp a.img b.img || fail "the copies differ"
}
it "a disk is lost, and the others go on" loses_one b "in step,away,in step"
it "the vote is lost, and the others go on" loses_one w "in step,in step,away"

# The vote has no part in a growth, and a later client counts it beside the larger disk.
grows() {
  begin_whole
  truncate -s 24M a.img b.img
  eventually 20 has_size $((24 << 20))
  eventually 60 is_whole
  kill_hard w
  eventually 20 states_are "in step,in step,away"
  truncate -s 32M a.img b.img
  head -c 64K /dev/urandom | dd of=b.img bs=1M seek=30 conv=notrunc status=none
  eventually 20 has_size $((32 << 20))
  [[ -z $(says .growth) ]] || fail "it waits for more: $(says .growth)"
  start w
  eventually 60 is_whole
  kill_at_once b "$client"
  start_client
  within 30 got 1
  nbdsh <<<'assert h.get_size() == 32 << 20; h.pwrite(b"x" * 65536, 31 << 20, nbd.CMD_FLAG_FUA)'
  start b
  eventually 60 is_whole
  end_client
  cmp a.img b.img || fail "the copies differ"
}
has_size() { [[ $(says .size) == "$1" ]]; }
it "a mirror with a vote grows, also while that is away, and its next client goes on with one disk" grows

# An idle client has no other reason to talk to the vote.
idle() {
  begin_whole
  local attempt
  for attempt in 1 2; do
    kill_hard w
    start w
    eventually 20 states_are "in step,in step,away"
    eventually 60 is_whole
  done
  kill_hard b
  within 10 put 2
  eventually 20 states_are "in step,away,in step"
  ! grep -F 'too few members' "$client.log" || fail "the group was over"
  end_client
}
[[ -z ${FULL:-} ]] || it "a vote whose server was started anew is claimed anew, though its client is idle" idle

# The vote records nothing while there is a file `hangs`.
start_hanging_vote() {
  local library=${RNBD_HANGING_SYNC:-$build_dir/tests/integration/libhanging_sync.so}
  [[ -z $sanitizer ]] || skip "a sanitizer wants to be the first library"
  local server_command=(env "LD_PRELOAD=$library" "RNBD_HANG_SYNC=$PWD/hangs" "${server_command[@]}")
  start w
}

# Nothing needs the vote, so nothing waits for it.
vote_hangs() {
  start a && start b
  start_hanging_vote
  mirror="rnbd-mirror+tcp://$(server_of a),$(server_of b)/disk0"
  start_client
  put 1
  end_client
  touch hangs
  mirror+="?vote=$(server_of w)"
  start_client
  local number
  for number in 2 3 4; do within 8 put "$number"; done
  eventually 20 vote_is_slow
  sleep 12
  for number in 5 6; do within 8 put "$number"; done
  (($(grep -cF 'for 2 s' "$client.log") <= 3)) || fail "it is tried again too soon: $(cat "$client.log")"
  rm hangs
  eventually 90 is_whole
  got 6
  end_client
}
vote_is_slow() { [[ $(says '.members[2].trouble') == *'without an answer for 2 s'* ]]; }
it "a vote whose storage hangs holds nothing up" vote_hangs

# The view of the vote and one disk is given up after 30 s.
needed_vote_hangs() {
  start a && start b
  start_hanging_vote
  mirror="rnbd-mirror+tcp://$(server_of a),$(server_of b)/disk0?vote=$(server_of w)"
  start_client
  put 1
  eventually 60 is_whole
  touch hangs
  kill_hard b
  eventually 20 waits
  start b
  limit=60 within 60 put 2
  rm hangs
  eventually 90 is_whole
  got 2
  end_client
}
[[ -z ${FULL:-} ]] || it "a disk waits for a vote that hangs, and goes on with the other disk once that is back" needed_vote_hangs

disk_and_client() {
  begin_whole
  local number lost kept
  for ((number = 2; number < 2 + losses; number++)); do
    lost=b kept=a
    ((number % 2)) || { lost=a kept=b; }
    put "$number"
    kill_at_once "$client" "$lost"
    start_client
    within 10 got "$number"
    put "$((number + 1000))"
    start "$lost"
    eventually 60 is_whole
    got "$((number + 1000))"
  done
  end_client
  cmp a.img b.img || fail "the copies differ"
  echo "lost a disk with the client $losses times; $kept was the last that stayed"
}
it "a disk and the client are lost together, and a new client goes on with the other disk" disk_and_client

vote_and_client() {
  begin_whole
  put 2
  kill_at_once "$client" w
  start_client
  within 10 got 2
  put 3
  start w
  eventually 60 is_whole
  end_client
}
it "the vote and the client are lost together, and a new client goes on" vote_and_client

# one_by_one FIRST SECOND
one_by_one() {
  begin_whole
  kill_hard "$1"
  within 10 put 2
  eventually 20 lacks_one
  kill_hard "$2"
  within 10 put 3
  got 3
  # Also without the client: the disk knows that it went on alone.
  kill_hard "$client"
  start_client
  within 10 got 3
  start "$1"
  start "$2"
  eventually 60 is_whole
  end_client
  cmp a.img b.img || fail "the copies differ"
}
lacks_one() { (($(says '[.members[] | select(.state == "away")] | length') == 1)); }
it "a disk is lost, and then the vote: the other disk goes on" one_by_one b w
it "the vote is lost, and then a disk: the other disk goes on" one_by_one w b

quorum() {
  begin_whole degraded=quorum
  kill_hard b
  within 10 put 2
  kill_hard w
  eventually 20 waits
  start w
  within 20 got 2
  start b
  eventually 60 is_whole
  end_client
}
it "with degraded=quorum a disk alone waits for the vote" quorum

# at_once NAME: a disk and the vote are lost, and this one comes back.
at_once() {
  begin_whole
  kill_at_once b w
  eventually 20 waits
  start "$1"
  within 20 got 1
  put 2
  local other=b
  [[ $1 == w ]] || other=w
  start "$other"
  eventually 60 is_whole
  end_client
}
it "a disk and the vote are lost at once: the client waits, and the disk suffices" at_once b
it "a disk and the vote are lost at once: the client waits, and the vote suffices" at_once w

# The disk that has everything is gone, and the other one is an old copy.
alone_for_good() {
  begin_whole
  kill_hard b
  within 10 put 2
  eventually 20 states_are "in step,away,in step"
  kill_at_once "$client" a
  start b
  start_client
  eventually 20 waits
  [[ $(says '.members[1].trouble') == *"has in step"* || $(says '.members[1].trouble') == *"older"* ]] ||
    fail "$(says .)"
  [[ $(says '.members[2].trouble') == *"$(server_of a)"* ]] || fail "the vote does not tell: $(says .)"
  end_client
}
it "the disk that went on is lost: the other one waits, and the vote says for whom" alone_for_good

wiped() {
  begin_whole
  kill_hard b
  within 10 put 2
  eventually 20 states_are "in step,away,in step"
  kill_at_once "$client" a w
  rm -r state-w/votes
  start w
  start b
  start_client
  eventually 20 waits
  [[ $(says '.members[2].trouble') == *"votes for nothing"* ]] || fail "$(says .)"
  start a
  within 20 got 2
  eventually 60 is_whole
  end_client
}
it "a vote that was wiped votes for nothing, until the disks have it in a view again" wiped

# ---- Others -------------------------------------------------------------------------------------

# Two mirrors with the same UUID, as those whose servers have the same names in two networks, and one vote.
others() {
  local uuid=01234567-89ab-cdef-0123-456789abcdef first
  begin_whole "group=$uuid"
  put 2
  first=$mirror
  local first_client=$client first_uri=$uri c d
  server_name=c start_server --state-directory "$PWD/state-c" --export "disk0=$(image c)"
  c=127.0.0.1:$port
  server_name=d start_server --state-directory "$PWD/state-d" --export "disk0=$(image d)"
  d=127.0.0.1:$port
  # It has begun without the vote, and an operator has forced a decision.
  mirror="rnbd-mirror+tcp://$c,$d/disk0?group=$uuid"
  bridge_name=other start_bridge "$mirror" --control "$PWD/control-other" --no-path-timeout 0 --reconnect-max 200ms
  put 7
  stop other 20
  stop d
  bridge_name=other start_bridge "$mirror" --control "$PWD/control-other" --no-path-timeout 0 --reconnect-max 200ms
  eventually 20 force_c
  got 7
  stop other 20
  bridge_name=other start_bridge "$mirror&vote=$(server_of w)" --control "$PWD/control-other" --no-path-timeout 0 \
    --reconnect-max 200ms
  got 7
  # The first one has seen nothing of that.
  uri=$first_uri
  lacks "$(server_of w) is lost" "$first_client.log"
  kill_hard b
  within 10 put 3
  eventually 20 grep -F "mirror disk0: $(server_of b) is lost" "$first_client.log"
  start b
  eventually 30 is_whole
  got 3
  is_refused "$PWD/control-other" || fail "its status does not say why"
  grep -F 'its record has other disks' w.log || fail "the log of the vote says nothing: $(cat w.log)"
  stop other 20
  client=$first_client
  end_client
  # Begun anew with other disks, it does not begin beside the old vote.
  stop a && stop b
  rm -r a.img b.img state-a state-b
  start a && start b
  mirror=$first
  start_client
  waits || fail "it has begun"
  is_refused "$PWD/control" || fail "the vote does not say why: $(says .)"
  limited "${ctl_command[@]}" "$PWD/control-w" member free ".vote/$uuid" --force || fail "it cannot be freed"
  within 20 put 3
  eventually 60 is_whole
  end_client
}
force_c() {
  local server
  server=$("${ctl_command[@]}" --json "$PWD/control-other" mirror status | jq -r '.members[0].server')
  "${ctl_command[@]}" "$PWD/control-other" mirror force "$server" --force >/dev/null 2>&1
}
# is_refused CONTROL: the vote there has told why.
is_refused() {
  [[ $("${ctl_command[@]}" --json "$1" mirror status | jq -r '.members[2].trouble') == *'other disks'*group=*'member free .vote/'* ]]
}
it "a mirror with the same UUID has not the vote of another one, nor has one that was begun anew" others

# Whoever may use votes, and knows the UUID.
stranger() {
  begin_whole "group=676f7570-2d6f-662d-6469-736b732e2e2e"
  put 2
  limit=60 limited /usr/bin/python3 -B "$member_program" "${port_of[w]}" stranger || fail "a stranger"
  got 2
  put 3
  eventually 20 is_whole
  lacks ' is lost' "$client.log"
  # Before there is a record, its claims hold nobody up.
  kill_hard w
  rm -r state-w/votes
  start w
  limit=60 limited /usr/bin/python3 -B "$member_program" "${port_of[w]}" stranger_first &
  local holds=$!
  eventually 20 test -e held
  put 4
  eventually 20 grep -F "mirror disk0: $(server_of w) is lost" "$client.log"
  put 5
  eventually 40 is_whole
  rm held
  wait "$holds" || fail "the stranger has failed"
  end_client
}
it "a stranger neither ends a mirror at its vote, nor keeps it from one" stranger

# Each of two clients finds one of the disks, and neither lets the other one have the vote for good.
two_clients() {
  local uuid=01234567-89ab-cdef-0123-456789abcdef
  begin_whole "group=$uuid"
  put 2
  kill_hard "$client"
  local users=() one_uri vote
  vote="vote=$(server_of w)&group=$uuid"
  bridge_name=one start_bridge "rnbd-mirror+tcp://$(server_of a),127.0.0.1:1/disk0?$vote" --connect lazy \
    --control "$PWD/control-one" --no-path-timeout 0 --reconnect-max 200ms --connect-timeout 60s
  one_uri=$uri
  bridge_name=two start_bridge "rnbd-mirror+tcp://127.0.0.1:1,$(server_of b)/disk0?$vote" --connect lazy \
    --control "$PWD/control-two" --no-path-timeout 0 --reconnect-max 200ms --connect-timeout 60s
  nbdsh "$one_uri" <<<'h.pread(512, 0)' >one.out 2>&1 &
  users+=($!)
  nbdsh <<<'h.pread(512, 0)' >two.out 2>&1 &
  users+=($!)
  within 10 eventually 30 is_attached one two
  local name=one other=two attempt
  is_attached one || name=two other=one
  for attempt in {1..10}; do
    is_attached "$name" || fail "$name is not attached any more"
    ! is_attached "$other" || fail "both are attached"
    sleep 0.3
  done
  stop one 20 && stop two 20
  wait "${users[@]}" || true
}
# is_attached NAME...: one of them is.
is_attached() {
  local name
  for name; do
    "${ctl_command[@]}" --json "$PWD/control-$name" mirror status >status.json || fail "$name has no status"
    ! jq -e .attached status.json >/dev/null || return 0
  done
  return 1
}
it "of two clients that lack each other's disk, one attaches" two_clients

# ---- Coming and going ---------------------------------------------------------------------------

# An existing mirror gets a vote, and does without one again.
later() {
  start_all
  local with_vote=$mirror
  mirror=${mirror%\?*}
  start_client
  put 1
  end_client
  mirror=$with_vote
  start_client
  got 1
  eventually 60 is_whole
  limited "${ctl_command[@]}" "$PWD/control" mirror discard "$(server_of w)" || fail "it was not discarded"
  eventually 20 states_are "in step,in step,discarded"
  put 2
  kill_hard "$client"
  mirror=${mirror%\?*}
  start_client
  within 10 got 2
  end_client
}
it "a mirror gets a vote later, and may do without it again" later

restart_all() {
  begin_whole
  put 2
  end_client
  stop a && stop b && stop w
  start w && start a && start b
  start_client
  within 10 got 2
  eventually 30 is_whole
  limited "${ctl_command[@]}" --json "$PWD/control" mirror dissolve "$(server_of a)" >dissolved.json ||
    fail "it was not dissolved"
  end_client
}
it "all are started anew, and the mirror is dissolved in the end" restart_all

finish
