#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# The units in a machine that starts and is shut down: what stands on a disk outlives nothing of that
# which the disk stands on.
source "${BASH_SOURCE[0]%/*}/lib.sh"
source "${BASH_SOURCE[0]%/*}/machine.sh"

more_logs() { machine_journal -n 60 -q 2>/dev/null | sed 's/^/      | /'; }

# A server whose disk the same machine mounts through a bridge. The mount is of FUSE, because it needs no
# modules; systemd orders it as all that have _netdev, which it finds by the mount's source.
machine_with_its_own_disk() {
  make_machine
  requires nbdfuse
  [[ -c /dev/fuse ]] || skip "there is no FUSE here"
  truncate -s 1M "$machine/files/srv/disk0.img"
  put /etc/rnbd-server.conf <<<'[export.disk0]
path = "/srv/disk0.img"'
  put /etc/rnbd-bridge/disk0.conf <<<'URI=rnbd+tcp://127.0.0.1:1234/disk0'
  put /etc/systemd/system/rnbd-server.service.d/remote-fs.conf <<<'[Unit]
Wants=remote-fs-pre.target
Before=remote-fs-pre.target'
  put /etc/systemd/system/rnbd-server.service.d/images.conf <<<'[Service]
ReadWritePaths=/srv'
  # shellcheck disable=SC2016
  put /usr/sbin/mount.nbdfuse <<<'#!/bin/sh
rm -f /run/nbdfuse.pid
nbdfuse -o "fsname=$1" --pidfile /run/nbdfuse.pid "$2" "$1" &
while ! test -s /run/nbdfuse.pid; do kill -0 $! || exit 1; done'
  put /etc/fstab <<<'nbd+unix:///?socket=/run/rnbd/disk0.sock /mnt/disk0 nbdfuse _netdev 0 0'
  chmod +x "$machine/files/usr/sbin/mount.nbdfuse"
  mkdir -p "$machine/files/mnt/disk0"
  in_files systemd-sysusers
  in_files chown rnbd: /srv /srv/disk0.img
  in_files systemctl -q enable rnbd-server.service rnbd-bridge@disk0.service remote-fs.target
}

# A program on the disk that reads it when it starts, and writes to it when it is stopped: not before
# systemd has stopped the bridge, or made that wait for us.
program_on_the_disk() {
  # shellcheck disable=SC2016
  put /usr/local/sbin/last-words <<<'#!/bin/bash
bridge_waits() { systemctl list-jobs --no-legend | grep -E "rnbd-bridge@disk0.service +stop +waiting"; }
until bridge_waits || ! systemctl is-active rnbd-bridge@disk0.service; do :; done
printf "%-512s" "last words" | dd of=/mnt/disk0/nbd conv=notrunc,fsync'
  chmod +x "$machine/files/usr/local/sbin/last-words"
  put /etc/systemd/system/program.service <<<'[Unit]
RequiresMountsFor=/mnt/disk0
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/bin/dd if=/mnt/disk0/nbd of=/root/read bs=512 count=1
ExecStop=/usr/local/sbin/last-words
[Install]
WantedBy=multi-user.target'
  in_files systemctl -q enable program.service
}

mounts() {
  machine_with_its_own_disk
  program_on_the_disk
  start_machine
  shut_down_machine
  cmp -n 10 "$machine/files/srv/disk0.img" <(printf 'last words') ||
    fail "what was written while the machine went down is not on the disk"
  start_machine
  cmp -n 10 "$machine/files/root/read" <(printf 'last words') || fail "it was not read at the next start"
  shut_down_machine
}
it "what a mount stands on comes before it, and is there for its last writes" mounts

# The mount's connection is the one of before: nbdfuse makes no other.
restarted() {
  local before
  machine_with_its_own_disk
  start_machine
  in_machine dd if=/dev/zero of=/mnt/disk0/nbd bs=4k count=1 conv=notrunc,fsync
  before=$(in_machine systemctl show -P MainPID rnbd-bridge@disk0.service)
  in_machine systemctl restart rnbd-bridge@disk0.service
  [[ $(in_machine systemctl show -P MainPID rnbd-bridge@disk0.service) != "$before" ]] || fail "it was not restarted"
  echo 'after the restart' >"$machine/files/root/words"
  in_machine dd if=/root/words of=/mnt/disk0/nbd conv=notrunc,fsync
  in_machine systemctl restart rnbd-bridge@disk0.service
  in_machine dd if=/mnt/disk0/nbd of=/root/read bs=18 count=1
  cmp "$machine/files/root/read" "$machine/files/root/words"
  cmp -n 18 "$machine/files/srv/disk0.img" "$machine/files/root/words"
  shut_down_machine
}
it "an NBD client goes on when systemd restarts the bridge" restarted

# A bridge that is only one for systemd and rnbd-ctl, because this kernel may have no nbd.
bridge_that_pretends() {
  put /usr/sbin/rnbd-bridge <<'EOF'
#!/usr/bin/python3
import json, os, pathlib, signal, socket, sys, threading
print("told", *sys.argv[1:], flush=True)
if "CREDENTIALS_DIRECTORY" in os.environ:
    print("key", (pathlib.Path(os.environ["CREDENTIALS_DIRECTORY"]) / "psk").read_text(), flush=True)
control = socket.socket(socket.AF_UNIX)
path = sys.argv[sys.argv.index("--control") + 1]
if os.path.exists(path): os.unlink(path)
control.bind(path)
control.listen()
disks = {"disk0"}
def answer():
    while True:
        asker, _ = control.accept()
        words = asker.recv(1000).decode().split()
        if words[0] == "remove-disk": disks.remove(words[1])
        asker.sendall(json.dumps({"disks": [{"disk": each, "device": each, "state": "serving"} for each in disks]}).encode() + b"\n")
        asker.close()
threading.Thread(target=answer, daemon=True).start()
def end(*_):
    there = "/mnt/disk0 " in open("/proc/self/mounts").read()
    print("ends", "under" if there else "after", "its mount", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
manager.sendto(b"READY=1", os.environ["NOTIFY_SOCKET"].replace("@", "\0", 1))
while True:
    signal.pause()
EOF
  chmod +x "$machine/files/usr/sbin/rnbd-bridge"
}

# maps OF-MOUNT OF-MAP TOLD: the unit is the one that map has enabled.
maps() {
  local unit
  make_machine
  bridge_that_pretends
  put /etc/fstab <<<"none /mnt/disk0 tmpfs noauto,_netdev$1 0 0"
  put /etc/rnbd/map.d/disk0.psk <<<'host1:of-this-disk'
  chmod 600 "$machine/files/etc/rnbd/map.d/disk0.psk"
  mkdir -p "$machine/files/mnt/disk0" "$machine/files/srv/block/nbd7"
  echo 'rnbd:u:disk0' >"$machine/files/srv/block/nbd7/backend"
  start_machine
  in_machine mount --bind /srv/block /sys/block
  in_machine mv /srv/block/nbd7 /srv/nbd7 # nothing is mapped yet
  # shellcheck disable=SC2086
  if in_machine rnbd-ctl map disk0 from 127.0.0.1 ro --persist $2 >said 2>&1; then fail "without a device?"; fi
  says said "the bridge runs, but the kernel has no device of 'disk0'"
  in_machine mv /srv/nbd7 /srv/block/nbd7
  unit=$(in_machine systemctl list-units --plain --no-legend 'rnbd-map*' | awk '{ print $1 }')
  [[ $(in_machine systemctl is-enabled "$unit") == enabled ]] || fail "not enabled"
  machine_journal -u "$unit" >journal.txt
  says journal.txt "told $3"
  in_machine systemctl kill -s KILL "$unit"
  eventually 60 told_twice
  in_machine systemctl start mnt-disk0.mount
  shut_down_machine
  machine_journal -u "$unit" >journal.txt
  says journal.txt 'ends after its mount'
  start_machine
  in_machine systemctl is-active "$unit"
  in_machine rnbd-ctl unmap disk0
  [[ $(in_machine systemctl is-active "$unit" || true) == inactive ]] || fail "it runs"
  [[ $(in_machine systemctl is-enabled "$unit" || true) == disabled ]] || fail "it comes with the next boot"
  [[ ! -e $machine/files/etc/rnbd/map.d/disk0.conf ]] || fail "its file is still there"
  shut_down_machine
}
told_twice() {
  machine_journal -u "$unit" >journal.txt
  (($(grep -c 'told ' journal.txt) >= 2))
}
has_its_key() {
  maps ,x-systemd.after=rnbd-map@disk0.service --own-process \
    '--kernel nbd --map-name disk0 --control /run/rnbd/map/disk0.control --access ro rnbd.tcp://127.0.0.1/disk0$'
  says journal.txt 'key host1:of-this-disk$'
}
it "a mapping lasts: killed bridges come again, mounts go before it, and it is there after a boot" has_its_key
it "so does one that shares a bridge" maps '' '' '--disks 127.0.0.1:1234-[0-9a-f]{8} --control /run/rnbd/map/127.0.0.1:1234-[0-9a-f]{8}.control$'

no_bridge() {
  make_machine
  start_machine
  if in_machine rnbd-ctl map disk0 from 127.0.0.1 -- --frobnicate >said 2>&1; then fail "with that option?"; fi
  says said "systemctl start rnbd-maps@127.0.0.1:1234-[0-9a-f]*.service failed with status [0-9]+: disk0: unknown option '--frobnicate' .its log: journalctl -u rnbd-maps@127.0.0.1:1234-[0-9a-f]*.service.$"
  if in_machine rnbd-ctl map disk0 from 127.0.0.1 --own-process -- --frobnicate >said 2>&1; then fail "with that option?"; fi
  says said "systemctl start rnbd-map@disk0.service failed with status [0-9]+: unknown option '--frobnicate' .its log: journalctl -u rnbd-map@disk0.service.$"
  shut_down_machine
}
it "a mapping whose bridge does not start says why in the bridge's own words" no_bridge

# as GROUP COMMAND...: a user who is in that group, and in no other that counts.
as() { in_machine setpriv --reuid 4711 --regid 4711 --groups "$1" "${@:2}"; }
readers() {
  make_machine
  put /etc/rnbd-server.conf <<<'[export.disk0]
storage = "memory:1M"'
  in_files systemd-sysusers
  in_files systemctl -q enable rnbd-server.service
  start_machine
  as rnbd rnbd-ctl server status >said
  says said disk0
  as rnbd rnbd-ctl server metrics >said
  says said rnbd_build_info
  if as rnbd rnbd-ctl server drain >said 2>&1; then fail "a reader has changed something"; fi
  says said 'only root and the user of this program may drain; the group rnbd may look'
  if as nogroup rnbd-ctl server status >said 2>&1; then fail "a stranger looks"; fi
  # Readers that take all the places keep no owner out.
  spawn hog as rnbd python3 -c '
import socket
readers = []
for _ in range(16):
    reader = socket.socket(socket.AF_UNIX)
    reader.connect("/run/rnbd-server/control")
    reader.sendall(b"status\n")
    assert reader.recv(1)
    readers.append(reader)
print("ready", flush=True)
while readers[0].recv(65536):
    pass  # until it makes room'
  eventually 20 grep -q ready hog.out
  if as rnbd rnbd-ctl server status >said 2>&1; then fail "there are more places than 16"; fi
  in_machine rnbd-ctl server drain
  wait_end hog 30 || fail "no reader made room"
  shut_down_machine
}
it "members of the group rnbd look at a server, and change nothing" readers

# fields NAME FILTER...: the newest line of the machine's journal with these fields, as JSON.
fields() { machine_journal -o json -n 1 -q "${@:2}" >"$1" && [[ -s $1 ]]; }
# field FILE NAME VALUE: it is a regular expression.
field() {
  /usr/bin/python3 -c 'import json, re, sys
line = json.load(open(sys.argv[1]))
assert re.fullmatch(sys.argv[3], line.get(sys.argv[2], "")), line' "$@" || fail "$2 is not $3"
}
knows() { eventually $((20 * slow)) fields "$@" || fail "no line has ${*:2}"; }

in_the_journal() {
  make_machine
  requires_python nbd
  put /etc/rnbd-server.conf <<<'[export.disk0]
storage = "memory:1M"'
  put /etc/rnbd-bridge/disk0.conf <<<'URI=rnbd+tcp://127.0.0.1:1234/disk0
OPTIONS=--session vm1'
  in_files systemd-sysusers
  in_files systemctl -q enable rnbd-server.service rnbd-bridge@disk0.service
  start_machine
  spawn client in_machine python3 -c '
import nbd, os, signal, time
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
h = nbd.NBD()
h.connect_uri("nbd+unix:///?socket=/run/rnbd/disk0.sock")
h.pwrite(b"x" * 512, 0)
print("written", flush=True)
time.sleep(3600)'
  eventually $((20 * slow)) grep -q written client.out
  knows opened.json RNBD_EVENT=device_opened
  field opened.json RNBD_DEVICE disk0
  field opened.json RNBD_SESSION vm1
  field opened.json RNBD_PATH '127\.0\.0\.1:[0-9]+'
  field opened.json PRIORITY 6
  field opened.json SYSLOG_IDENTIFIER rnbd-server
  field opened.json _SYSTEMD_UNIT rnbd-server.service
  field opened.json MESSAGE ".*opened 'disk0' rw.*"
  # The server closes the path; the bridge finds the same session again.
  in_machine rnbd-ctl server path disconnect "$(in_machine rnbd-ctl server list paths csv pathname noheaders)"
  knows lost.json RNBD_EVENT=path_lost RNBD_SESSION=vm1
  field lost.json RNBD_PATH 'tcp:127\.0\.0\.1:1234'
  field lost.json PRIORITY 4
  field lost.json ERRNO '[1-9][0-9]*'
  field lost.json _SYSTEMD_UNIT rnbd-bridge@disk0.service
  knows closed.json RNBD_EVENT=path_closed
  # All that the unit says is found by its name, with fields or without.
  machine_journal -u rnbd-server -o cat >all.txt
  says all.txt 'ready'
  says all.txt "opened 'disk0' rw"
  in_machine systemctl stop rnbd-bridge@disk0.service
  # At its end systemd stops all processes for a moment, and nsenter would stop with its own for good.
  in_machine pkill -x python3
  wait_end client 10 || fail "the client goes on"
  shut_down_machine
}
it "the journal has fields for session, path and device of a line, and finds it by its unit" in_the_journal

# As docs/security.md has it. The keys belong to root alone; the bridge has a user of its own.
keys_of_a_bridge() {
  make_machine
  in_files systemd-sysusers
  local etc=$machine/files/etc
  mkdir "$etc"/{rnbd,rnbd-bridge}
  "${ctl_command[@]}" keygen host1 "$etc/rnbd/keys.psk" --out "$etc/rnbd-bridge/disk0.psk"
  "${ctl_command[@]}" certgen "$etc/rnbd/tls" --server 127.0.0.1
  "${ctl_command[@]}" certgen "$etc/rnbd/tls" --client host1 --out "$etc/rnbd-bridge/disk1.tls"
  in_files chown -R rnbd: /etc/rnbd/keys.psk /etc/rnbd/tls
  put /etc/rnbd-server.conf <<<'[server]
listen = ["tcp:127.0.0.1:1234"]
tls = "require"
tls-psk = "/etc/rnbd/keys.psk"
tls-certificates = "/etc/rnbd/tls"
[export.disk0]
storage = "memory:1M"
rw = ["host1"]'
  put /etc/rnbd-bridge/disk0.conf <<<'URI=rnbds+tcp://host1@127.0.0.1/disk0?tls-psk-file=credential:psk'
  put /etc/rnbd-bridge/disk1.conf <<<'URI=rnbds+tcp://127.0.0.1/disk0?tls-certificates=credential:tls'
  put /etc/rnbd-bridge/disk2.conf <<<'URI=rnbds+tcp://host1@127.0.0.1/disk0?tls-psk-file=/root/host1.psk'
  in_files systemctl -q enable rnbd-server.service rnbd-bridge@disk{0,1,2}.socket
  start_machine
  in_machine nbdinfo --size 'nbd+unix:///?socket=/run/rnbd/disk0.sock'
  in_machine nbdinfo --size 'nbd+unix:///?socket=/run/rnbd/disk1.sock'
  # What the unit hides is told with the way out.
  if in_machine timeout 20 nbdinfo --size 'nbd+unix:///?socket=/run/rnbd/disk2.sock' >said 2>&1; then fail "without a key?"; fi
  eventually $((20 * slow)) hidden_is_told
  shut_down_machine
}
hidden_is_told() {
  machine_journal -u rnbd-bridge@disk2.service -o cat >journal.txt
  grep -E '/root/host1\.psk: .*ProtectHome=.*credential:' journal.txt
}
it "the bridge's unit reads keys and certificates that belong to root alone" keys_of_a_bridge

without_configuration() {
  make_machine
  start_machine
  local unit
  for unit in rnbd-server.service rnbd-server.socket rnbd-bridge@typo.socket rnbd-map@typo.service rnbd-maps@typo.service; do
    if in_machine systemctl start "$unit" >said 2>&1; then fail "$unit has started"; fi
    says said "Assertion failed on job for $unit"
  done
  shut_down_machine
}
it "a unit without its configuration file does not start, and systemctl says so" without_configuration

finish
