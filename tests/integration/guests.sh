#!/bin/bash
# Machines of QEMU that write to a disk of ours all the time: they move to another host, which has a
# bridge of its own, in the right and in wrong ways; and they are backed up.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"
source "${BASH_SOURCE[0]%/*}/machine.sh"
source "${BASH_SOURCE[0]%/*}/counting_guest.sh"

make_guest() {
  requires qemu-system-x86_64
  [[ -z $sanitizer ]] || skip "a guest shows nothing more in a sanitized build"
  counting_image image
  start_server --export "vm1=$PWD/image" --control "$PWD/server.control"
}
written() { count_in image 512; }
failed() { count_in image 516; }
more_written() { (($(written) > $1)); }

# host NAME OPTIONS...: a bridge in front of the disk.
host() { bridge_name=$1 start_bridge "rnbd+tcp://$address/vm1" "${@:2}"; }

# machine_at NAME DISK-OPTIONS ARGUMENTS...: with the disk of that host's bridge.
machine_at() {
  spawn "qemu-$1" qemu-system-x86_64 -accel tcg -m 32 -display none -nodefaults \
    -qmp "unix:$PWD/$1.qmp,server=on,wait=off" \
    -drive "file=nbd+unix:///?socket=$PWD/$1.sock,format=raw,if=virtio,id=vm1,cache=none$2" "${@:3}"
}

# qmp NAME COMMAND [ARGUMENTS]: the answer, one line of JSON.
qmp() {
  limited /usr/bin/python3 - "$@" <<'PY'
import json, socket, sys
monitor = socket.socket(socket.AF_UNIX)
monitor.connect(sys.argv[1] + ".qmp")
lines = monitor.makefile("rw")
lines.readline()
def ask(command, arguments):
    lines.write(json.dumps({"execute": command, "arguments": arguments}) + "\n")
    lines.flush()
    while True:
        answer = json.loads(lines.readline())
        if "event" not in answer:
            return answer
ask("qmp_capabilities", {})
print(json.dumps(ask(sys.argv[2], json.loads(sys.argv[3]) if len(sys.argv) > 3 else {})))
PY
}
listens() { [[ -S $1.qmp ]]; }
migrated() { qmp source query-migrate >migration.json && grep -q '"status": "completed"' migration.json; }
is_state() { qmp "$1" query-status >state.json && grep -q "\"status\": \"$2\"" state.json; }
access_of_users() {
  "${ctl_command[@]}" "$PWD/server.control" status --json |
    limited /usr/bin/python3 -c 'import json, sys
print(*sorted(each["access_mode"] for each in json.load(sys.stdin)["devices"]))'
}
users_have() { [[ $(access_of_users) == "$1" ]]; }

start_source() {
  make_guest
  host source --access rw
  machine_at source ''
  eventually 60 more_written 10
}

moves() {
  start_source
  host target --access migration
  machine_at target '' -incoming "unix:$PWD/way"
  eventually 20 listens target
  eventually 20 users_have 'migration rw'
  qmp source migrate "{\"uri\": \"unix:$PWD/way\"}"
  eventually 60 migrated
  eventually 20 is_state target running
  local before
  before=$(written)
  qmp source quit
  expect_gone qemu-source 0
  eventually 20 more_written "$((before + 10))"
  (($(failed) == 0)) || fail "the guest saw $(failed) errors"
  eventually 10 users_have rw
  qmp target quit
  expect_gone qemu-target 0
}
it "a machine moves while it writes, without an error; then its access is rw" moves

# qemu takes its time on a busy machine.
target_fails() {
  wait_end qemu-target $((30 * slow)) || fail "qemu-target still runs"
  ((status == 1)) || fail "qemu-target left with status $status, not 1"
}

refused() {
  start_source
  host target --access rw
  machine_at target '' -incoming "unix:$PWD/way"
  target_fails
  says qemu-target.log 'Operation not permitted; another client has it open for writing: .* with access migration while a machine moves here'
  is_state source running || fail "the source does not run"
  eventually 20 more_written "$(($(written) + 10))"
}
it "with access rw at both ends the target ends at its start and says why; the source runs on" refused

refused_by_qemu() {
  start_source
  host target
  machine_at target ',auto-read-only=off' -incoming "unix:$PWD/way"
  target_fails
  says target.log 'may only read; .* with access migration while a machine moves here'
  is_state source running || fail "the source does not run"
}
it "... so it does without any access given, if qemu may not fall back to reading" refused_by_qemu

# The copy goes to another server, by a bridge of its own.
backed_up() {
  start_source
  truncate -s 16M copy
  server_name=store start_server --export "monday=$PWD/copy"
  bridge_name=backup start_bridge --access rw "rnbd+tcp://$address/monday"
  local begun ended
  qmp source blockdev-add "{\"driver\": \"raw\", \"node-name\": \"backup\", \"file\": {\"driver\": \"nbd\",
    \"server\": {\"type\": \"unix\", \"path\": \"$PWD/backup.sock\"}, \"export\": \"monday\"}}" | tee said
  says said '"return"'
  begun=$(written)
  qmp source blockdev-backup "{\"job-id\": \"monday\", \"device\": \"vm1\", \"target\": \"backup\", \"sync\": \"full\"}" |
    tee said
  says said '"return"'
  ended=$(written)
  eventually 60 no_job
  eventually 20 more_written "$((ended + 10))"
  qmp source blockdev-del '{"node-name": "backup"}' | tee said
  says said '"return"'
  qmp source quit
  expect_gone qemu-source 0
  local copied
  copied=$(count_in copy 512)
  ((copied >= begun && copied <= ended + 1)) || fail "the copy is of $copied, not of $begun to $ended"
  cmp -n 512 image copy
  cmp -i 1024 image copy
}
no_job() { qmp source query-jobs >jobs.json && ! grep -q '"monday"' jobs.json; }
it "qemu backs up the disk of a running machine as it was when that began" backed_up

# ---- A hook of libvirt -----------------------------------------------------------------------------

hook() { in_machine /etc/libvirt/hooks/qemu vm1 "$1" "$2" - <domain.xml >hook.txt 2>&1; }
uses() {
  serves "$1"
  in_machine nbdinfo --size 'nbd+unix:///vm1?socket=/run/rnbd/vm1.sock' >size.txt
  says size.txt '^1048576$'
}
serves() {
  eventually 20 has_begun
  says cmdline.txt "--access rw --access $1 rnbd.tcp://127.0.0.1:1234/vm1 $"
}
# has_begun: systemd has a process of its own there until it has become the program.
has_begun() {
  in_machine cat "/proc/$(process)/cmdline" 2>/dev/null | tr '\0' ' ' >cmdline.txt
  grep -q 'rnbd-bridge ' cmdline.txt
}
process() { in_machine systemctl show -P MainPID rnbd-bridge@vm1.service; }
runs_anew() { [[ $(process) != 0 && $(process) != "$1" ]]; }

has_stopped() { [[ $(in_machine systemctl show -P ActiveState "rnbd-bridge@vm1.$1") == inactive ]]; }

hooks() {
  make_machine
  mkdir -p "$machine/files/etc/libvirt/hooks"
  in_files install -m 755 /usr/share/doc/rnbd-bridge/examples/libvirt/qemu /etc/libvirt/hooks/qemu
  put /etc/rnbd-server.conf <<<'[export.vm1]
storage = "memory:1M"'
  put /etc/rnbd-bridge/vm1.conf <<<'OPTIONS="--access rw"
URI=rnbd+tcp://127.0.0.1:1234/vm1'
  in_files systemd-sysusers
  in_files systemctl -q enable rnbd-server.service
  cat >domain.xml <<'XML'
<domain type='qemu'>
  <name>vm1</name>
  <devices>
    <disk type='network' device='disk'>
      <driver name='qemu' type='raw' cache='none' discard='unmap'/>
      <source protocol='nbd' name='vm1'>
        <host transport='unix' socket='/run/rnbd/vm1.sock'/>
      </source>
      <target dev='vda' bus='virtio'/>
    </disk>
    <disk type='network' device='cdrom'>
      <source protocol='nbd' name='iso'>
        <host transport='unix' socket='/run/rnbd/iso.sock'/>
      </source>
      <target dev='sda' bus='sata'/>
      <readonly/>
    </disk>
    <disk type='network' device='disk'>
      <source protocol='nbd' name='data'>
        <host transport='unix' socket='/run/rnbd/data.sock'/>
      </source>
      <target dev='vdb' bus='virtio'/>
      <shareable/>
    </disk>
  </devices>
</domain>
XML
  start_machine
  hook prepare begin
  grep -q . hook.txt && fail "what the hook prints would be the domain's XML"
  uses rw
  hook release end
  fails in_machine test -e /run/rnbd/vm1.sock
  eventually 10 has_stopped service
  eventually 10 has_stopped socket
  hook migrate begin
  hook prepare begin
  hook start begin
  uses migration

  # A machine that runs here keeps its bridge.
  local runs
  runs=$(process)
  fails hook migrate begin
  says hook.txt 'the bridge of the disk vm1 is in use on this host'
  [[ $(process) == "$runs" ]] || fail "the bridge of a machine that runs was started anew"
  sed 's#<name>vm1#<name>vm2#' domain.xml >other.xml
  fails in_machine /etc/libvirt/hooks/qemu vm2 prepare begin - <other.xml
  in_machine /etc/libvirt/hooks/qemu vm2 release end - <other.xml
  [[ $(process) == "$runs" ]] || fail "another machine has its bridge"

  # The bridge that systemd starts again does not write beside a machine on another host.
  in_machine kill -KILL "$runs"
  eventually 20 runs_anew "$runs"
  uses rw
  hook stopped end
  hook release end
  hook prepare begin
  uses rw
  hook release end

  # Announced machines that have not come.
  hook migrate begin
  serves migration
  in_machine sed -i 's/.*/-60/' /run/rnbd/vm1.incoming
  hook prepare begin
  uses rw
  hook release end
  hook migrate begin
  hook migrate begin
  hook prepare begin
  uses migration
  hook release end
  in_machine systemctl start rnbd-bridge@vm1.service
  fails hook migrate begin
  in_machine systemctl stop rnbd-bridge@vm1.socket rnbd-bridge@vm1.service

  # Of two disks one does not start.
  sed 's#iso#second#; /<readonly/d' domain.xml >two.xml
  fails in_machine /etc/libvirt/hooks/qemu vm1 migrate begin - <two.xml >hook.txt 2>&1
  says hook.txt 'the disk second has no /etc/rnbd-bridge/second.conf on this host'
  in_machine cp /etc/rnbd-bridge/vm1.conf /etc/rnbd-bridge/worse.conf
  in_machine sed -i 's#^URI=.*#URI=nonsense#' /etc/rnbd-bridge/worse.conf
  sed 's#second#worse#' two.xml >wrong.xml
  fails in_machine /etc/libvirt/hooks/qemu vm1 migrate begin - <wrong.xml >hook.txt 2>&1
  says hook.txt 'the bridge of the disk worse does not start'
  eventually 10 has_stopped service
  eventually 10 has_stopped socket
  fails in_machine test -e /run/rnbd/vm1.access

  in_machine rm /etc/rnbd-bridge/vm1.conf
  fails hook migrate begin
  says hook.txt 'the disk vm1 has no /etc/rnbd-bridge/vm1.conf on this host'
  shut_down_machine
}
it "a hook of libvirt gives the bridge access migration for a move that was announced, and rw else" hooks

finish
