# shellcheck shell=bash
# Load under which things happen: writers whose every block is checked, a user who waits for each
# answer, and cables whose bytes are counted. For scripts that have sourced lib.sh.
# SPDX-License-Identifier: BSD-3-Clause

here=$(realpath "${BASH_SOURCE[0]%/*}")

writers=4
start_writers() {
  local i
  for ((i = 0; i < writers; i++)); do
    spawn "writer$i" /usr/bin/python3 "$here/stamps.py" write "$uri" "$i" "$@"
  done
  progress 20
}

# progress COUNT: every writer gets COUNT more answers.
progress() {
  local i
  for ((i = 0; i < writers; i++)); do
    eventually 20 test -e "acked.$i"
    eventually 20 number_above "acked.$i" $(($(number "acked.$i") + $1))
  done
}
number() { od -An -t u8 -N 8 "$1" | tr -d ' '; }
number_above() {
  [[ " ${started[*]} " == *" writer0 "* ]] || return 1
  (($(number "$1") > $2))
}

# No writer saw an error, nothing that was answered is lost; the longest write is in $longest.
end_writers() {
  local i count stall
  longest=0
  touch enough
  for ((i = 0; i < writers; i++)); do
    wait_end "writer$i" $((20 * slow)) || fail "writer $i still waits"
    cat "writer$i.log"
    ((status == 0)) || fail "writer $i ended with status $status"
    read -r count stall <"writer$i.out"
    echo "writer $i: $count writes, the longest took $stall s"
    longest=$(awk -v a="$longest" -v b="$stall" 'BEGIN { print (a > b ? a : b) }')
  done
  if [[ -e image ]]; then "$here/stamps.py" check image; fi
}
# at_most SECONDS LIMIT: only a long run measures; the short one shares two CPUs with other tests.
at_most() {
  local factor=$slow
  [[ -n ${FULL:-} ]] || factor=$((3 * slow))
  awk -v a="$1" -v b="$2" -v factor="$factor" 'BEGIN { exit !(a <= b * factor) }'
}

# user: a client that keeps one NBD connection and does what it is told, a line for each request:
# `write`, `flush`, `read` or `quit`.
user() {
  local from_user to_user
  pipe from_user user_answers
  pipe user_asks to_user
  spawn user /usr/bin/python3 -c '
import os, sys, time, nbd
h = nbd.NBD()
h.connect_uri(sys.argv[1])
answers = os.fdopen(int(sys.argv[3]), "w", buffering=1)
for line in os.fdopen(int(sys.argv[2])):
    began = time.monotonic()
    try:
        what = line.strip()
        if what == "quit": break
        if what == "write": h.pwrite(b"x" * 4096, 0)
        if what == "read": h.pread(4096, 0)
        if what == "flush": h.flush()
        answer = "ok"
    except nbd.Error as error:
        answer = error.errno
    print(answer, f"{time.monotonic() - began:.2f}", file=answers)
' "$uri" "$user_asks" "$user_answers"
  exec {user_asks}<&- {user_answers}>&-
  user_answers=$from_user user_asks=$to_user
}
# ask REQUEST: the answer is in $answer and $took.
ask() {
  echo "$1" >&"$user_asks"
  await_line "$user_answers" 30 || fail "no answer to $1"
  read -r answer took <<<"$line"
  echo "$1: $answer after $took s"
}
works() {
  ask "$1"
  [[ $answer == ok ]]
}
# image_in_use: a server of an image of 4 MiB, attached with the options in $quick, and a user who has written to it.
image_in_use() {
  requires_python nbd
  truncate -s 4M image
  start_server --export "disk0=$PWD/image"
  attach disk0 "${quick[@]}"
  user
  works write || fail "cannot write"
}
end_user() {
  echo quit >&"$user_asks"
  wait_end user 20 || fail "the user is still there"
}

# carries HOST BYTES: so much goes through it from now on.
carries() { eventually 30 carried "forwarded.$1" $(($(number "forwarded.$1") + $2)); }
carried() { (($(number "$1") > $2)); }
