# shellcheck shell=bash
# What the integration scripts share: test cases with a closing line, programs that are started,
# waited for without polling and always stopped, and small assertions.
# By hand: RNBD_BUILD_DIR=build tests/integration/basic.sh; see ../tools/cases.sh for the cases.
# SPDX-License-Identifier: BSD-3-Clause

set -euo pipefail
shopt -s inherit_errexit

source_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build_dir=$(realpath -m "${RNBD_BUILD_DIR:-$source_dir/build}")
server_program=${RNBD_SERVER:-$build_dir/bin/rnbd-server}
bridge_program=${RNBD_BRIDGE:-$build_dir/bin/rnbd-bridge}
ctl_program=${RNBD_CTL:-$build_dir/bin/rnbd-ctl}
plugin=${RNBD_PLUGIN:-$build_dir/nbdkit-plugin/nbdkit-rnbd-plugin.so}
face=${RNBD_FACE:-nbdkit} # what NBD clients see of us: nbdkit with our plugin, or `bridge`
sanitizer=${RNBD_SANITIZE:-}
PATH=$PATH:/usr/sbin:/sbin
client_program=$plugin # of that face
[[ $face != bridge ]] || client_program=$bridge_program
if [[ ! -x $server_program || ! -e $client_program ]]; then
  echo "$server_program or $client_program is missing: build first, or set RNBD_BUILD_DIR" >&2
  exit 1
fi

work_dir=$(mktemp -d "${TMPDIR:-/tmp}/rnbd-test.XXXXXX")
export STATE_DIRECTORY=$work_dir/state # what outlives a server
source "$source_dir/tests/tools/cases.sh"

# Sanitized builds are several times slower, and say on stderr what they find.
[[ -z $sanitizer ]] || slow=5
sanitizer_pattern='(ERROR|WARNING): (Address|Leak|Thread|UndefinedBehavior)Sanitizer|runtime error:'
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_stack_use_after_return=1:abort_on_error=0}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1:halt_on_error=1}
export TSAN_OPTIONS=${TSAN_OPTIONS:-halt_on_error=0:second_deadlock_stack=1}

# ---- The end of a case ------------------------------------------------------------------------------

# Stops what the case started; a program that stays, or that a sanitizer complained about, fails it.
close_case() {
  local rc=0 log
  stop_all || rc=1
  run_at_end
  no_process_left || rc=1
  for log in "$case_dir"/*.log; do
    if [[ $log == "$case_dir/case.log" ]] || ! sanitizer_found_something "$log"; then continue; fi
    echo "FAILED: a sanitizer reported something in ${log##*/}"
    rc=1
  done
  return "$rc"
}

# Leaks of nbdkit itself, of which there are some, are not ours; everything else is.
sanitizer_found_something() {
  grep -qE "$sanitizer_pattern" "$1" || return 1
  grep -E "$sanitizer_pattern" "$1" | grep -qv 'LeakSanitizer' && return 0
  awk -v RS= '/(Direct|Indirect) leak of/ &&
    (/nbdkit-rnbd-plugin|\/(rdma|bridge|nbdkit-plugin)\// || !/\/nbdkit/) { found = 1 }
    END { exit !found }' "$1"
}

# ---- Programs --------------------------------------------------------------------------------------

# pipe READ WRITE: a pipe; sets the two variables to its file descriptors.
pipe() {
  local -n pipe_read=$1 pipe_write=$2
  local both fifo
  fifo=$(mktemp -u "$case_dir/fifo.XXXXXX")
  mkfifo "$fifo"
  # shellcheck disable=SC2094 # opened for both ways first, so that neither end waits
  exec {both}<>"$fifo" {pipe_write}>"$fifo" {pipe_read}<"$fifo" {both}>&-
  rm "$fifo"
}

# spawn NAME COMMAND...: starts a program in the background; pid[NAME] is its process. Its end is
# seen as the end of file of a pipe that it inherits, so that waiting needs no polling.
declare -A pid end_of
started=()
spawn() {
  local name=$1 r w
  shift
  pipe r w
  : >"$case_dir/$name.log" # what one of that name has said before is not what this one says
  "$@" >"$case_dir/$name.out" 2>"$case_dir/$name.log" &
  pid[$name]=$!
  end_of[$name]=$r
  started+=("$name")
  exec {w}>&-
}

# wait_end NAME SECONDS: waits for a spawned program; its exit status is in $status.
# Returns 1 when it still runs.
wait_end() {
  local name=$1 seconds=$2 rc=0 line fd=${end_of[$1]}
  read -r -t "$seconds" -u "$fd" line || rc=$?
  ((rc <= 128)) || return 1
  status=0
  wait "${pid[$name]}" || status=$?
  local others=() other
  for other in "${started[@]}"; do [[ $other == "$name" ]] || others+=("$other"); done
  started=("${others[@]+"${others[@]}"}")
  exec {fd}<&-
  return 0
}

# stop NAME [SECONDS]: SIGTERM; fails when it does not leave with status 0 in time.
stop() {
  local name=$1 seconds=${2:-5}
  [[ " ${started[*]-} " == *" $name "* ]] || return 0
  kill -TERM "${pid[$name]}" 2>/dev/null || true
  if ! wait_end "$name" $((seconds * slow)); then
    echo "FAILED: $name still runs $((seconds * slow)) s after SIGTERM"
    kill -KILL "${pid[$name]}" || true
    wait_end "$name" 10 || true
    return 1
  fi
  ((status == 0)) || {
    echo "FAILED: $name left with status $status after SIGTERM"
    return 1
  }
}

# expect_gone NAME STATUS: it leaves with this status within five seconds.
expect_gone() {
  wait_end "$1" $((5 * slow)) || fail "$1 still runs after $((5 * slow)) s"
  ((status == $2)) || fail "$1 left with status $status, not $2"
}

# freeze NAME: SIGSTOP, and waits until no thread of it runs any more.
freeze() {
  kill -STOP "${pid[$1]}"
  eventually 10 frozen "${pid[$1]}"
}
frozen() { ! grep -h '^State:' "/proc/$1/task/"*/status | grep -qv 'T (stopped)'; }
thaw() { kill -CONT "${pid[$1]}"; }

# kill_hard NAME: SIGKILL, and waits until it is gone.
kill_hard() {
  kill -KILL "${pid[$1]}"
  wait_end "$1" 10 || fail "$1 survived SIGKILL"
}

# In reverse order, so that clients go before their servers.
stop_all() {
  local rc=0 i names=("${started[@]+"${started[@]}"}")
  for ((i = ${#names[@]} - 1; i >= 0; i--)); do
    stop "${names[i]}" || rc=1
  done
  return "$rc"
}

# Every process of a case carries RNBD_TEST_CASE; one that does not end by itself now was leaked. The
# shell does not wait for those in <(...).
no_process_left() {
  local process mine=$BASHPID left
  for _ in {1..20}; do
    left=()
    while read -r process; do
      if [[ $process != "$mine" && $process != "$$" && -e /proc/$process ]]; then left+=("$process"); fi
    done < <(processes_of_case)
    ((${#left[@]} > 0)) || return 0
    sleep 0.1
  done
  for process in "${left[@]}"; do
    echo "FAILED: left behind: $process $(tr '\0' ' ' 2>/dev/null <"/proc/$process/cmdline")"
    kill -KILL "$process" 2>/dev/null
  done
  return 1
}
# One grep for all of them; itself and the shell it is started from are gone when the list is read.
processes_of_case() {
  local found
  found=$(grep -lsz "^RNBD_TEST_CASE=$RNBD_TEST_CASE$" /proc/[0-9]*/environ) || true
  grep -oE '[0-9]+' <<<"$found"
}

# await_line FD SECONDS: the next line from a pipe, in $line.
await_line() {
  line=
  read -r -t $(($2 * slow)) -u "$1" line || [[ -n $line ]]
}

# wait_for_line FILE REGEX: until the line is there.
wait_for_line() {
  : >>"$1" # it may not have been opened yet
  timeout $((10 * slow)) grep -qE -m 1 -- "$2" <(tail -n +1 -f "$1") || fail "no line $2 in $1"
}

# status_of NUMBER COMMAND...: the command ends with this status; its output is in said.
status_of() {
  local expected=$1 rc=0
  shift
  timeout 20 "$@" >said 2>&1 || rc=$?
  cat said
  ((rc == expected)) || fail "status $rc, not $expected: $*"
}

# With sanitizers: see sanitizer_shim.cpp. A leak must not change nbdkit's exit status, because it may be
# its own; sanitizer_found_something looks at it.
server_command=("$server_program")
bridge_command=("$bridge_program")
ctl_command=("$ctl_program")
nbdkit_command=(nbdkit)
if [[ -n ${RNBD_PRELOAD:-} ]]; then
  server_command=(env "LD_PRELOAD=$RNBD_PRELOAD" "$server_program")
  bridge_command=(env "LD_PRELOAD=$RNBD_PRELOAD" "$bridge_program")
  ctl_command=(env "LD_PRELOAD=$RNBD_PRELOAD" "$ctl_program")
  nbdkit_command=(env "LD_PRELOAD=$RNBD_PRELOAD" "ASAN_OPTIONS=$ASAN_OPTIONS:detect_leaks=0" nbdkit) # it leaks itself
fi

# start_server [ARGUMENTS...]: rnbd-server on a free port of 127.0.0.1; sets $port and $address.
# `server_name=NAME start_server ...` for a second one.
start_server() {
  local name=${server_name:-server} ready_read ready_write
  pipe ready_read ready_write
  spawn "$name" "${server_command[@]}" --listen "tcp:127.0.0.1:${server_port:-0}" \
    --ready-fd "$ready_write" "$@"
  exec {ready_write}>&-
  if ! await_line "$ready_read" 20; then
    cat "$case_dir/$name.log"
    fail "rnbd-server did not become ready"
  fi
  exec {ready_read}<&-
  port=$(grep -hoE '127\.0\.0\.1:[0-9]+' - "$case_dir/$name.log" <<<"$line" | head -n 1 | sed 's/.*://')
  [[ -n $port ]] || fail "rnbd-server did not say where it listens: $line"
  address=127.0.0.1:$port
}

# start_nbdkit ARGUMENTS...: an nbdkit on a Unix socket; sets $socket and $uri.
# `nbdkit_name=NAME start_nbdkit ...` for a second one.
start_nbdkit() {
  local name=${nbdkit_name:-nbdkit} ready_read ready_write
  socket=$case_dir/$name.sock
  rm -f "$socket"
  pipe ready_read ready_write
  spawn "$name" "${nbdkit_command[@]}" -f -U "$socket" -P "/dev/fd/$ready_write" "$@"
  exec {ready_write}>&-
  if ! await_line "$ready_read" 20; then
    cat "$case_dir/$name.log"
    fail "nbdkit did not become ready"
  fi
  exec {ready_read}<&-
  uri="nbd+unix:///?socket=$socket"
}

# start_bridge ARGUMENTS...: rnbd-bridge on a Unix socket; sets $socket and $uri.
# `bridge_name=NAME start_bridge ...` for a second one.
start_bridge() {
  local name=${bridge_name:-bridge} ready_read ready_write
  socket=$case_dir/$name.sock
  pipe ready_read ready_write
  spawn "$name" "${bridge_command[@]}" --listen "unix:$socket" --ready-fd "$ready_write" "$@"
  exec {ready_write}>&-
  if ! await_line "$ready_read" 20; then
    cat "$case_dir/$name.log"
    fail "rnbd-bridge did not become ready"
  fi
  exec {ready_read}<&-
  uri="nbd+unix:///?socket=$socket"
}

# start_forward HOST [PORT]: a cable to the server at $port; its own port is in $forward_port.
start_forward() {
  local ready_read ready_write
  pipe ready_read ready_write
  spawn "forward$1" "$source_dir/tests/integration/forward.py" "$1" "${2:-0}" 127.0.0.1 "$port" "$ready_write"
  exec {ready_write}>&-
  await_line "$ready_read" 20 || fail "no forwarder on $1"
  forward_port=$line
  exec {ready_read}<&-
}
end_forward() { kill_hard "forward$1"; }

# refused_client URI TEXT...: a client that connects at its start ends, and says so.
refused_client() {
  local uri=$1 text
  shift
  if [[ $face == bridge ]]; then
    status_of 1 "${bridge_command[@]}" --listen "unix:$PWD/refused.sock" --connect now \
      --connect-timeout 2s "$uri"
  else
    status_of 1 "${nbdkit_command[@]}" -f -U "$PWD/refused.sock" "$plugin" "$uri" connect=now \
      connect-timeout=2s
  fi
  for text in "$@"; do says said "$text"; done
}

# attach_to URI [PARAMETERS...]: the face in front of a server; sets $socket and $uri. Parameters are
# the plugin's, KEY=VALUE, which the bridge has as --KEY VALUE, and tls=... as --upstream-tls. The program
# is called `nbdkit` here, whichever it is, or $nbdkit_name.
attach_to() {
  if [[ $face != bridge ]]; then
    start_nbdkit "${nbdkit_flags[@]+"${nbdkit_flags[@]}"}" "$plugin" "$@"
    return
  fi
  local options=() parameter
  for parameter in "${@:2}"; do
    [[ $parameter != tls* ]] || parameter=upstream-$parameter
    [[ $parameter == dynamic-export=true ]] || options+=("--${parameter%%=*}" "${parameter#*=}")
  done
  bridge_name=${nbdkit_name:-nbdkit} start_bridge "$1" "${options[@]+"${options[@]}"}"
}
nbdkit_flags=()

# it_plugin TITLE FUNCTION [ARGUMENTS...]: a case that, with rnbd-bridge, only FULL=1 has the time for.
it_plugin() { [[ $face == bridge && -z ${FULL:-} ]] || it "$@"; }

# attach DEVICE [PARAMETERS...]: the same for a device of the server at $address.
attach() { attach_to "rnbd+tcp://$address/$1" "${@:2}"; }

# ---- Clients, each with a limit, so that a hang fails one case and not the whole run --------------------

limit=180
limited() { timeout -k 5 $((limit * slow)) "$@"; }
nbdinfo() { limited nbdinfo "$@"; }
nbdcopy() { limited nbdcopy "$@"; }
qemu-img() { limited qemu-img "$@"; }
qemu-io() { limited qemu-io "$@"; }
# nbdsh: Python with libnbd; the script comes on standard input, the handle is `h`, connected to $uri.
nbdsh() {
  limited /usr/bin/python3 -m nbd -u "${1:-$uri}" -c "$nbdsh_prelude" -c -
}
# What a process holds. Not with find(1), which looks at each entry and fails when a thread ends meanwhile.
threads() {
  local tasks=("/proc/${pid[$1]}/task/"*)
  echo "${#tasks[@]}"
}
descriptors() {
  local open=("/proc/${pid[$1]}/fd/"*)
  echo "${#open[@]}"
}
has_descriptors() { (($(descriptors "$1") == $2)); }
threads_at_most() { (($(threads "$1") <= $2)); }

# For `eventually`, when requests fail until a path is back.
writes() { nbdsh <<<'h.pwrite(b"x" * 65536, 0, nbd.CMD_FLAG_FUA)' 2>/dev/null; }
nbdsh_prelude=$(
  cat <<'PYTHON'
import errno, os, nbd, pathlib, signal, time
def fails_with(number, function, *arguments, **named):
    "The call must fail at the server with this errno."
    h.set_strict_mode(0)
    try:
        function(*arguments, **named)
    except nbd.Error as error:
        assert error.errnum == number, f"{error.errno}, expected {errno.errorcode[number]}: {error}"
    else:
        raise AssertionError(f"no error, expected {errno.errorcode[number]}")
def freeze(pid):
    "SIGSTOP, and waits until no thread of the process runs any more."
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + 10
    while not all("T (stopped)" in path.read_text()
                  for path in pathlib.Path(f"/proc/{pid}/task").glob("*/status")):
        assert time.monotonic() < deadline, f"process {pid} does not stop"
PYTHON
)

# rss NAME: resident kilobytes of a spawned program.
rss() { awk '/^VmRSS/ { print $2 }' "/proc/${pid[$1]}/status"; }
