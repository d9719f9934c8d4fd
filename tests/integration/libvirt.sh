#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# libvirt as it is, on two hosts with the example's hook: a domain starts, gets a disk and loses it, is
# refused where it must not run, and moves to the other host and back while it writes.
source "${BASH_SOURCE[0]%/*}/lib.sh"
source "${BASH_SOURCE[0]%/*}/machine.sh"
source "${BASH_SOURCE[0]%/*}/counting_guest.sh"

declare -A init
at() {
  machine_init=${init[$1]}
  in_machine "${@:2}"
}

# make_host NAME NUMBER: a machine with libvirt's daemon, and 10.9.0.NUMBER.
make_host() {
  mkdir "$1"
  cd "$1"
  case_number+=$2 make_machine
  cd ..
  mkdir -p "$machine/files/etc/libvirt/hooks"
  in_files install -m 755 /usr/share/doc/rnbd-bridge/examples/libvirt/qemu /etc/libvirt/hooks/qemu
  put /etc/libvirt/libvirtd.conf <<<"host_uuid = \"0000000$2-1111-4222-8333-444444444444\"
auth_unix_rw = \"none\""
  put /etc/libvirt/qemu.conf <<<'user = "root"
group = "root"
security_driver = "none"
namespaces = []
cgroup_controllers = []
remember_owner = 0'
  local disk
  for disk in vm1 data; do
    put "/etc/rnbd-bridge/$disk.conf" <<<"URI=rnbd+tcp://10.9.0.1/$disk
OPTIONS=\"--session $1-$disk\""
  done
  put /usr/lib/sysusers.d/libvirt.conf <<<'u libvirt-qemu -
g kvm -
m libvirt-qemu kvm
g libvirt -'
  in_files systemd-sysusers
  [[ $1 != a ]] || images
  start_machine
  init[$1]=$machine_init
  in_machine hostname "$1"
  # The next one has another name.
  pid[$1]=${pid[machine]}
  end_of[$1]=${end_of[machine]}
  started=("${started[@]/%machine/$1}")
}

# The first host is the storage server, too.
images() {
  put /etc/rnbd-server.conf <<<'[server]
listen = ["tcp:0.0.0.0:1234"]
[export.vm1]
path = "/srv/rnbd/vm1.img"
[export.data]
path = "/srv/rnbd/data.img"'
  mkdir "$machine/files/srv/rnbd"
  counting_image "$machine/files/srv/rnbd/vm1.img"
  truncate -s 1M "$machine/files/srv/rnbd/data.img"
  in_files chown -R rnbd: /srv/rnbd
  in_files systemctl -q enable rnbd-server.service
}

libvirt() {
  virsh -c "qemu+unix:///system?socket=/proc/${init[$1]}/root/run/libvirt/libvirt-sock" "${@:2}"
}
answers() { libvirt "$1" list >/dev/null; }

two_hosts() {
  requires libvirtd virtlogd virsh qemu-system-x86_64
  make_host a 1
  make_host b 2
  nsenter -t "${init[a]}" -n ip link add host type veth peer name host netns "${init[b]}"
  local name
  for name in a b; do
    nsenter -t "${init[$name]}" -n ip addr add "10.9.0.$(($(printf '%d' "'$name") - 96))/24" dev host
    nsenter -t "${init[$name]}" -n ip link set host up
    at "$name" virtlogd -d
    at "$name" libvirtd -d
    eventually 20 answers "$name"
  done
  cat >vm1.xml <<'XML'
<domain type='qemu'>
  <name>vm1</name>
  <memory unit='MiB'>64</memory>
  <os><type arch='x86_64' machine='pc'>hvm</type></os>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    <controller type='scsi' index='0' model='virtio-scsi'/>
    <disk type='network' device='disk'>
      <driver name='qemu' type='raw' cache='none' discard='unmap'/>
      <source protocol='nbd' name='vm1'>
        <host transport='unix' socket='/run/rnbd/vm1.sock'/>
      </source>
      <target dev='vda' bus='virtio'/>
    </disk>
    <memballoon model='none'/>
  </devices>
</domain>
XML
}

written() { at a od -An -tu4 -j512 -N4 /srv/rnbd/vm1.img | tr -d ' '; }
failed() { at a od -An -tu4 -j516 -N4 /srv/rnbd/vm1.img | tr -d ' '; }
more_written() { (($(written) > $1)); }
goes_on() { eventually 60 more_written "$(($(written) + 10))"; }
users() {
  at a rnbd-ctl --json server status | limited /usr/bin/python3 -c 'import json, sys
print(*sorted(each["session"] + " " + each["access_mode"] for each in json.load(sys.stdin)["devices"]), sep=", ")'
}
users_are() { [[ $(users) == "$1" ]]; }
move() { libvirt "$1" migrate --live vm1 \
  "qemu+unix:///system?socket=/proc/${init[$2]}/root/run/libvirt/libvirt-sock" --migrateuri "tcp://10.9.0.$3:49152"; }

moves() {
  two_hosts
  libvirt a create vm1.xml
  eventually 20 users_are 'a-vm1 rw'
  goes_on

  sed -n '/<disk/,/<\/disk/p' vm1.xml | sed "s/name='vm1'/name='data'/; s/vm1.sock/data.sock/; s/vda/sda/; s/virtio/scsi/" >data.xml
  at a systemctl start rnbd-bridge@data.socket
  libvirt a attach-device vm1 data.xml
  at a rnbd-ctl --json server status >status.json
  says status.json '"session":"a-data"'
  libvirt a detach-device vm1 data.xml
  libvirt a domblklist vm1 | tee disks.txt
  if grep sda disks.txt; then fail "the disk is still there"; fi

  # It runs at the other host.
  fails libvirt b create vm1.xml
  says fails.out 'the server cannot open .vm1. \(rw\): Operation not permitted'
  goes_on

  at b mv /etc/rnbd-bridge/vm1.conf /root/
  fails move a b 2
  says fails.out 'the disk vm1 has no /etc/rnbd-bridge/vm1.conf on this host'
  at b mv /root/vm1.conf /etc/rnbd-bridge/
  goes_on

  move a b 2
  libvirt b list | tee domains.txt
  says domains.txt 'vm1 +running'
  eventually 20 users_are 'b-vm1 rw'
  fails at a test -e /run/rnbd/vm1.sock
  goes_on
  move b a 1
  eventually 20 users_are 'a-vm1 rw'
  goes_on
  (($(failed) == 0)) || fail "the guest saw $(failed) errors"
  libvirt a destroy vm1
  eventually 20 users_are ''
  fails at a test -e /run/rnbd/vm1.sock
  local name
  for name in b a; do
    at "$name" systemctl poweroff || true
    wait_end "$name" $((60 * slow)) || fail "the host $name does not end"
  done
}
it "a domain moves to another host and back while it writes, and is refused where it must not run" moves

finish
