# shellcheck shell=bash
# Load that notices lost and reverted writes, for scripts that have sourced lib.sh.

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
