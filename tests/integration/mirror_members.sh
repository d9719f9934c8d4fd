# shellcheck shell=bash
# What the scripts about mirrors share: servers of copies, writers, and what the control socket tells.
# KILLS=N: how often a member or the client is killed in each case about that.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"

writer_program=$(realpath "${BASH_SOURCE[0]%/*}")/mirror_writer.py
kills=${KILLS:-${FULL:+100}}
kills=${kills:-2}
declare -A member_port

# start_member NAME: the server of a copy, at the same port as before.
member_options=()
disk_size=16M
declare -A member_fault # "fault:...:" in front of its storage
start_member() {
  local rights=
  [[ ${member_options[*]-} != *--tls* ]] || rights=",rw=*"
  [[ -e $1.img ]] || truncate -s "$disk_size" "$1.img"
  server_name=$1 server_port=${member_port[$1]:-0} start_server \
    --state-directory "$PWD/state-$1" --control "$PWD/control-$1" --export "disk0=${member_fault[$1]-}$PWD/$1.img$rights" \
    "${member_options[@]+"${member_options[@]}"}"
  member_port[$1]=$port
}

# start_members NAME...: sets $mirror, their URI.
start_members() {
  local name list=
  for name; do
    start_member "$name"
    list+=,127.0.0.1:$port
  done
  mirror="rnbd-mirror+tcp://${list:1}/disk0"
}

# face_of_mirror [PARAMETERS...]: so that a dead server is soon known.
face_of_mirror() { attach_to "$mirror" no-path-timeout=0 reconnect-max=200ms "$@"; }

# same NAME...: the copies are the same, byte by byte.
same() {
  local first=$1 name
  for name in "${@:2}"; do cmp "$first.img" "$name.img" || fail "the copies of $first and $name differ"; done
}

writers=2
answered() { (($(cat "acked.$1" 2>/dev/null || echo 0) > $2)); }
# go_on: every writer has had an answer to a write that it began from now on.
go_on() {
  local writer before
  for ((writer = 1; writer <= writers; writer++)); do
    before=$(cat "acked.$writer" 2>/dev/null || echo 0)
    eventually 120 answered "$writer" $((before + 2))
  done
}
start_writers() {
  local writer
  for ((writer = 1; writer <= writers; writer++)); do
    spawn "writer$writer" /usr/bin/python3 -B "$writer_program" write "$uri" "$writer"
  done
  go_on
}
end_writers() {
  touch enough
  local writer
  for ((writer = 1; writer <= writers; writer++)); do
    wait_end "writer$writer" 120 || fail "writer $writer does not end"
    ((status == 0)) || fail "writer $writer: $(cat "writer$writer.log")"
    cat "writer$writer.out"
  done
}
# End of the client first: it leaves no region to be made equal.
copies_are_same() {
  stop nbdkit 10
  same "$@"
}
compare() {
  copies_are_same "$@"
  limited /usr/bin/python3 -B "$writer_program" check "$1.img"
}

# mirror_says FILTER: of what `mirror status` answers.
mirror_says() { "${ctl_command[@]}" --json "$PWD/control" mirror status | jq -r "$1"; }
all_in_step() {
  [[ $(mirror_says '[.unequal_mib] + ([.members[].state] | unique) | map(tostring) | join(",")') == "0,in step" ]]
}
# all_in_step_of CLIENT [MEMBERS]: so many are, by default two; its control socket has its name.
all_in_step_of() {
  (($("${ctl_command[@]}" --json "$PWD/$1" mirror status |
    jq '[.members[] | select(.state == "in step")] | length') == ${2:-2}))
}
mirror_misses_one() { [[ $(mirror_says '[.members[].state] | sort | join(",")') == 'away,in step' ]]; }
attached() { [[ $(mirror_says .attached) == true ]]; }
detached() { [[ $(mirror_says .attached) == false ]]; }
told_in_step() { [[ $(mirror_says '.members[1].state') == "in step" ]]; }
# For each of these the number of a member: from 0 on.
is_away() { [[ $(mirror_says ".members[$1].state") == away ]]; }
waits() { [[ $(mirror_says ".members[$1].state") == waiting ]]; }

# enlarge SIZE NAME...: the storage of copies, as of any disk.
enlarge() {
  local name
  for name in "${@:2}"; do truncate -s "$1" "$name.img"; done
}
has_size() { [[ $(mirror_says .size) == "$1" ]]; }
growth_waits() { [[ $(mirror_says .growth) == *"$1"* ]]; }
# tail_works SIZE: a new client sees so many bytes, and the last of them are as good as others.
tail_works() {
  nbdsh <<PYTHON
assert h.get_size() == $1, h.get_size()
end = h.get_size()
first = h.pread(65536, end - 65536)
for i in range(8):
    assert h.pread(65536, end - 65536) == first
h.pwrite(b"tail" * 16384, end - 65536, nbd.CMD_FLAG_FUA)
for i in range(8):
    assert h.pread(65536, end - 65536) == b"tail" * 16384
PYTHON
}
