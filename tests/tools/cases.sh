# shellcheck shell=bash
# Test cases for scripts, with a closing line, and small assertions.
#
# A script sets $work_dir, sources this file, calls `it "title" FUNCTION` for each case and ends with
# `finish`. A case runs in a subshell under `set -e` in its own directory; `skip REASON` leaves it.
# ONLY=REGEX picks cases by title, KEEP=1 keeps the directory, VERBOSE=1 shows the log of every case.
# The script defines close_case, which is called when a case has ended, however it ended, and fails
# it by its status; and it may define more_logs, which is called when a case failed, and again_because,
# which says why a case that failed is to be run again, twice at most, for what is not ours to mend.
# SPDX-License-Identifier: BSD-3-Clause

passed=0 failed=0 skipped=0 case_number=0
slow=1 # by how much everything takes longer than usual here

# it TITLE FUNCTION [ARGUMENTS...]: runs one case and counts it.
it() {
  local title=$1 rc began took reason attempt
  shift
  [[ -z ${ONLY:-} || $title =~ $ONLY ]] || return 0
  case_number=$((case_number + 1))
  case_dir=$work_dir/$case_number
  began=$EPOCHREALTIME
  set +e
  for attempt in 1 2 3; do
    rm -rf "$case_dir"
    mkdir "$case_dir"
    (
      set -e
      run_case "$@"
    ) >"$case_dir/case.log" 2>&1 </dev/null
    rc=$?
    if ((rc == 0 || attempt == 3)) || ! reason=$(because_of_others); then break; fi
    printf 'again %s: %s\n' "$title" "$reason"
  done
  set -e
  took=$(awk -v a="$began" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }')
  if ((rc == 0)); then
    passed=$((passed + 1))
    printf 'ok    %s (%s s)\n' "$title" "$took"
    [[ -z ${VERBOSE:-} ]] || sed 's/^/      | /' "$case_dir/case.log"
  elif ((rc == 77)) && [[ -s $case_dir/skip ]]; then
    skipped=$((skipped + 1))
    reason=$(<"$case_dir/skip")
    printf 'skip  %s: %s\n' "$title" "$reason"
  else
    failed=$((failed + 1))
    # In one line, so that a summary has the reason, too.
    reason=$(sed -n 's/^FAILED: /: /p' "$case_dir/case.log" | tail -n 1)
    printf 'FAIL  %s (exit status %d, %s s)%s\n' "$title" "$rc" "$took" "$reason"
    tail -n "${LOG_LINES:-40}" "$case_dir/case.log" | sed 's/^/      | /'
    show_logs
  fi
  [[ -n ${KEEP:-} ]] || rm -rf "$case_dir"
}

because_of_others() { [[ $(type -t again_because) == function ]] && again_because; }

run_case() {
  at_end_commands=()
  export RNBD_TEST_CASE="$$.$case_number"
  trap end_case EXIT
  trap 'exit 143' TERM INT
  cd "$case_dir"
  "$@"
}

end_case() {
  local rc=$?
  trap - EXIT
  set +e
  close_case || { ((rc != 0 && rc != 77)) || rc=1; }
  exit "$rc"
}

# at_end COMMAND...: runs when the case ends and its programs are stopped, however it ends.
at_end() { at_end_commands=("${*@Q}" "${at_end_commands[@]+"${at_end_commands[@]}"}"); }
run_at_end() {
  local command
  for command in "${at_end_commands[@]+"${at_end_commands[@]}"}"; do eval "$command"; done
}

show_logs() {
  local log
  for log in "$case_dir"/*.log; do
    [[ $log != "$case_dir/case.log" ]] || continue
    show_log "$log"
  done
  [[ $(type -t more_logs) != function ]] || more_logs
}

# show_log FILE: its last lines.
show_log() {
  [[ -s $1 ]] || return 0
  printf '      --- %s (last lines)\n' "${1#"$work_dir"/}"
  tail -n "${LOG_LINES:-40}" "$1" | tr -d '\r' | sed 's/^/      | /'
}

# finish: the closing line, and the script's exit status (77 when everything was skipped).
finish() {
  if [[ -n ${ONLY:-} ]] && ((case_number == 0)); then
    echo "FAIL  no case has a title that matches $ONLY"
    failed=1
  fi
  if [[ -n ${KEEP:-} ]]; then echo "kept: $work_dir"; else rm -rf "$work_dir"; fi
  echo "$passed passed, $failed failed, $skipped skipped"
  ((failed == 0)) || exit 1
  ((passed > 0)) || exit 77
  exit 0
}

# skip REASON: leaves the case; nothing was shown either way.
skip() {
  printf '%s\n' "$*" >"$case_dir/skip"
  exit 77
}

# requires COMMAND...: skips the case when one is not installed.
requires() {
  local command
  for command in "$@"; do
    command -v "$command" >/dev/null || skip "$command is not installed"
  done
}

# requires_python MODULE: the same for a Python module.
requires_python() {
  /usr/bin/python3 -c "import $1" 2>/dev/null || skip "python3 has no module $1"
}

# ---- Assertions ------------------------------------------------------------------------------------

fail() {
  echo "FAILED: $*"
  exit 1
}

# fails COMMAND...: must end with a status that is an answer: not 0, no signal, no timeout.
fails() {
  local rc=0
  "$@" >"$case_dir/fails.out" 2>&1 || rc=$?
  cat "$case_dir/fails.out"
  ((rc != 0)) || fail "succeeded, but should not: $*"
  ((rc < 124)) || fail "ended with status $rc: $*"
}

# logged FILE REGEX: the first text of a log that matches, also if it comes a little later.
logged() {
  says "$1" "$2" >&2
  grep -oE -m 1 -- "$2" "$1" | head -n 1
}

# says FILE REGEX: the file has a line that matches.
says() {
  local try
  # Nobody waits for the log: what has happened may be said a little later.
  for ((try = 0; try < 20 * slow; try++)); do
    if grep -qE -- "$2" "$1"; then return; fi
    sleep 0.1
  done
  echo "--- $1:"
  tail -n 40 "$1"
  fail "no line in ${1##*/} matches: $2"
}

# random_file FILE BYTES
random_file() { head -c "$2" /dev/urandom >"$1"; }

# eventually SECONDS COMMAND...: for state that no event announces (files, /proc).
eventually() {
  local deadline=$((SECONDS + $1 * slow))
  until "${@:2}"; do
    ((SECONDS < deadline)) || fail "not within $1 s: ${*:2}"
    sleep 0.05
  done
}
