# shellcheck shell=bash
# soft-RoCE works between two guests, and the lab does to them what it says.
# SPDX-License-Identifier: BSD-3-Clause

listens() { rdma resource show cm_id | grep -q 'state LISTEN'; }

# The server of rping calls it an error that the client leaves; the client knows what came back.
rping_server() { rping -s -a "$1" -C 5 || true; }

rping_both_cables() {
  local address server
  for address in 10.99.0.1 fd99::1:1; do
    on server rping_server "$address" & server=$!
    on server eventually 10 listens
    on client rping -c -v -a "$address" -C 5 -S 4000
    wait "$server"
  done
}

pull_and_plug() {
  pull client 0
  on client eventually 10 carrier 0 0
  on client carrier 1 1
  fails on client busybox ping -c 1 -W 2 10.99.0.1
  on client busybox ping -c 1 -W 10 10.99.1.1
  plug client 0
  on client eventually 10 carrier 0 1
  on client busybox ping -c 1 -W 10 10.99.0.1
}

pause_and_reset() {
  local before after
  pause server
  fails on client busybox ping -c 1 -W 2 10.99.0.1
  resume server
  on client busybox ping -c 1 -W 10 10.99.0.1
  on server touch /tmp/here
  before=$(on server cat /proc/sys/kernel/random/boot_id)
  reset server
  after=$(on server cat /proc/sys/kernel/random/boot_id)
  [[ $after != "$before" ]] || fail "it has not booted again"
  fails on server test -e /tmp/here
  on client busybox ping -c 1 -W 10 10.99.0.1
}

kernel_warning() { echo "WARNING: CPU: 0 PID: 1 at a test of the lab" >/dev/kmsg; }

aborts() {
  background abortive sh -c 'kill -ABRT $$'
  eventually 10 test -s /run/abortive.status
}

segfaults() {
  python3 -c 'import ctypes; ctypes.string_at(0)' || keep_dmesg
}

# In a subshell: what must fail here is what would fail the case.
sees_failures() {
  fails on server false
  [[ $(on server eval 'echo out; echo err >&2' 2>err) == out && $(<err) == err ]]
  on server kernel_warning
  fails no_complaint server
  no_complaint server
  on server segfaults
  fails no_complaint server
  rm server-dmesg.log
  on server aborts
  fails on server nothing_crashed
  on server rm /run/abortive.status
  limit=3
  (on server sleep 60) && fail "a hang went unnoticed"
  [[ -e $work_dir/server/hangs ]]
  rm "$work_dir/server/hangs"
}

load_is_checked() {
  truncate -s 8M /tmp/disk
  fio_verify /tmp/disk
  # In a subshell, which is what fails.
  if (fio_verify /tmp/disk --time_based --runtime=1); then fail "fio did not read all, and nobody noticed"; fi
}

boot server client
it "rping gets its data over one cable by IPv4 and over the other by IPv6" rping_both_cables
it_full "a pulled cable is down, the other is not, and comes up when plugged" pull_and_plug
it_full "a guest can be paused and reset" pause_and_reset
it "failures, hangs and complaints of the kernel in a guest are seen" sees_failures
it "a load that has not read all that it wrote is an error" on client load_is_checked
finish
