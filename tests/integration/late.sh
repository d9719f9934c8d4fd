#!/bin/bash
# What is not there when rnbd-server or rnbd-bridge starts, and comes later: storage, addresses, names,
# families of addresses. The rest is served meanwhile.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"
source "${BASH_SOURCE[0]%/*}/two_hosts.sh"

ctl() { "${ctl_command[@]}" "$PWD/control" "$@"; }

# opens DEVICE ERRNO: an OPEN is answered with that; 0 is none.
opens() {
  local answer
  answer=$(PYTHONPATH=$source_dir/tests/integration PYTHONDONTWRITEBYTECODE=1 limited /usr/bin/python3 - "$port" "$1" <<'PY'
import sys
from raw_peer import *
try:
    Session(int(sys.argv[1])).open(sys.argv[2].encode())
    print(0)
except OSError as error:
    print(error.errno)
PY
)
  [[ $answer == "$2" ]] || { echo "OPEN of $1: $answer, not $2"; return 1; }
}

# ---- Storage ---------------------------------------------------------------------------------------

absent_storage() {
  truncate -s 1M here
  start_server --export "a=$PWD/here" --export "gone=$PWD/gone" --export "far=nbd+unix:///?socket=$PWD/nobody" \
    --export "lost=$PWD/lost,ro" --control "$PWD/control"
  says server.log 'ready, .* exporting a \(1 MiB\), far \(waiting for its storage\), gone \(waiting'
  local name
  for name in gone far lost; do
    wait_for_line server.log "warning: export '$name' is not served yet.*told to try again later: .*tried again every second"
    opens "$name" 11
  done
  opens a 0
  ctl status | tee status
  says status "^gone +waiting +- +no +- +- +- +$PWD/gone: there is no such file"
  says status '^far +waiting +- +no +- +- +- +nbd\+unix.*NBD server runs'
  says status '^lost +waiting +- +yes '
  says status '^a +open +1048576 '

  truncate -s 2M gone
  wait_for_line server.log "export 'gone' is served now"
  opens gone 0
  ctl status | tee status
  says status '^gone +open +2097152 +no +- +- +[0-9a-f-]{36} +-$'
  says status '^lost +waiting '
}
it "storage that is not there keeps nothing else from being served, and is served once it is" absent_storage

waited_for_by_clients() {
  start_server --export "disk0=$PWD/image"
  attach disk0 connect-timeout=60s
  spawn client timeout 60 nbdinfo --size "$uri"
  wait_for_line nbdkit.log 'storage is not there yet.*tried again until connect-timeout'
  truncate -s 3M image
  expect_gone client 0
  [[ $(<client.out) == 3145728 ]]
}
it "a client that comes before the storage waits for it" waited_for_by_clients

# A list is answered by what the server knows; who asks for one disk waits for it. A client that lists
# looks at each, and qemu's ends at the first that it cannot have.
listed() {
  requires_python nbd
  truncate -s 1M here there
  start_server --export "a=$PWD/here" --export "gone=$PWD/gone" --export "lost=$PWD/lost" --export "z=$PWD/there"
  start_bridge "rnbd+tcp://$address" --connect-timeout 60s --connect now
  limit=10 nbdinfo --list "$uri" | tee list
  [[ $(grep -o 'export="[a-z]*"' list | tr '\n' ' ') == 'export="a" export="z" ' ]] || fail "the list is not whole"
  if type -P qemu-nbd >/dev/null; then
    limited qemu-nbd --list -k "$socket" | tee list
    says list 'exports available: 2'
  fi
  limited /usr/bin/python3 - "$socket" <<'PY'
import errno, nbd, sys
h = nbd.NBD()
h.set_opt_mode(True)
h.connect_unix(sys.argv[1])
h.opt_list(lambda *_: 0)
h.set_export_name("gone")
try:
    h.opt_info()
except nbd.Error as error:
    assert error.errnum == errno.ENOENT, error
else:
    raise AssertionError("it is there")
h.set_export_name("z")
h.opt_go()
PY
  says bridge.log "NBD client: .*cannot open 'gone' .*its storage is not there yet"
  if grep 'tried again until' bridge.log; then fail "it waited for storage"; fi
  spawn client timeout 60 nbdinfo --size "${uri/\/\/\//\/\/\/gone}"
  wait_for_line bridge.log "cannot open 'gone' .*tried again until connect-timeout"
  truncate -s 3M gone
  expect_gone client 0
}
it "a list of exports has all that are there, and waits for none" listed

# It has been answered, and has not waited.
asked_before() {
  requires_python nbd
  truncate -s 1M here
  start_server --export "a=$PWD/here" --export "gone=$PWD/gone"
  start_bridge "rnbd+tcp://$address" --connect-timeout 60s --connect now
  spawn client timeout 60 /usr/bin/python3 -c '
import nbd, sys
h = nbd.NBD()
h.set_opt_mode(True)
h.connect_unix(sys.argv[1])
h.set_export_name("a")
h.opt_info()
h.set_export_name("gone")
h.opt_go()
print(h.get_size())' "$socket"
  wait_for_line bridge.log "cannot open 'gone' .*tried again until connect-timeout"
  truncate -s 3M gone
  expect_gone client 0
  [[ $(<client.out) == 3145728 ]]
}
it "a client that has looked at another export waits for its storage" asked_before

not_for_ever() {
  start_server --export "disk0=$PWD/image"
  attach disk0 connect-timeout=1s
  fails nbdinfo --size "$uri"
  says nbdkit.log 'storage is not there yet'
}
it "a client waits for storage no longer than connect-timeout" not_for_ever

forbidden_storage() {
  ((EUID == 0)) || skip "needs root to become somebody else"
  requires setpriv
  chmod 755 . ..
  truncate -s 1M image
  chmod 600 image
  install -d -o 65534 state
  cp "$server_program" ./rnbd-server
  STATE_DIRECTORY=$PWD/state spawn server setpriv --reuid=65534 --regid=65534 --clear-groups \
    "$PWD/rnbd-server" --listen tcp:127.0.0.1:0 --export "a=$PWD/image" --export b=memory:1M
  wait_for_line server.log "'a' is not served yet.*image: permission denied"
  chown 65534 image
  wait_for_line server.log "export 'a' is served now"
}
it "storage that the server may not read is served once it may" forbidden_storage

# What librados tells apart by one errno only.
cluster_unknown() {
  [[ -e ${server_program%/*}/rnbd-backend-rbd.so ]] || skip "built without librbd-dev: contrib/install-packages ceph"
  printf '%s\n' '[global]' 'mon_host = 127.0.0.1:1' 'auth_client_required = cephx' \
    'keyring = /nowhere/keyring' >ceph.conf
  start_server --export "conf=rbd:rbd/x,conf=$PWD/nowhere.conf" --export "key=rbd:rbd/x,conf=$PWD/ceph.conf,id=vm"
  wait_for_line server.log "'conf' is not served yet.*reading the cluster's configuration failed: No such file.*name an existing file with conf="
  wait_for_line server.log "'key' is not served yet.*connecting to the cluster failed: No such file.*ceph auth get client\.vm -o "
}
it "a cluster's configuration or key that is missing is told by its name" cluster_unknown

absent_search_path() {
  start_server --search-path "$PWD/disks" --export scratch=memory:1M --control "$PWD/control"
  says server.log "exporting scratch \(1 MiB\); what is below $PWD/disks \(waiting for it\)"
  wait_for_line server.log 'what is below the search path is not served yet.*No such file'
  opens disk0 11
  opens scratch 0
  ctl status | tee status
  says status "^search_path: +waiting: .*$PWD/disks"
  mkdir new
  truncate -s 1M new/disk0
  mv new disks
  wait_for_line server.log 'what is below the search path is served now'
  opens disk0 0
}
it "a search path that is not there yet is used once it is" absent_search_path

links() {
  mkdir -p dev/mapper dev/disk/by-id
  truncate -s 8M dev/dm-0
  truncate -s 1M secret
  ln -s ../dm-0 dev/mapper/vg-lv
  ln -s ../../mapper/vg-lv dev/disk/by-id/dm-name-vg-lv
  ln -s ../secret dev/out
  ln -s "$PWD/dev/dm-0" dev/absolute
  start_server --search-path "$PWD/dev"
  opens disk/by-id/dm-name-vg-lv 0
  opens out 2
  opens absolute 2
  says server.log "'out': no export has this name, and below the search path $PWD/dev: a symbolic link leads out"
  attach mapper/vg-lv
  spawn holder /usr/bin/python3 -m nbd -u "$uri" -c 'h.pwrite(b"x" * 512, 0)' -c \
    'print("held", flush=True)' -c 'import signal; signal.pause()'
  wait_for_line holder.out held
  opens dm-0 1
  kill_hard holder
}
it "links below a search path are names of one device, which has one writer; none leads out" links

# ---- Addresses -------------------------------------------------------------------------------------

late_address() {
  two_hosts
  start_server --listen tcp:10.99.9.1:7777 --export disk0=memory:1M --control "$PWD/control"
  says server.log 'cannot listen on tcp:10\.99\.9\.1:7777: .*no such address.*tried again every second'
  says server.log 'ready, listening on tcp:127\.0\.0\.1:[0-9]+ \(waiting for tcp:10\.99\.9\.1:7777\), exporting'
  ctl status | tee status
  says status '^tcp:10\.99\.9\.1:7777 +optimized +off +none +waiting +.*no such address'
  says status '^tcp:127\.0\.0\.1:[0-9]+ +optimized +off +none +listening +-$'
  status_of 1 "${ctl_command[@]}" "$PWD/control" access tcp:10.99.9.1:7777 inaccessible
  says said 'waits'
  ip -n "$near" addr add 10.99.9.2/24 dev cable0
  ip -n "$far" addr add 10.99.9.1/24 dev cable0
  wait_for_line server.log 'listening on tcp:10\.99\.9\.1:7777 now'
  attach_to rnbd+tcp://10.99.9.1:7777/disk0
  [[ $(nbdinfo --size "$uri") == 1048576 ]]
  ctl status | tee status
  says status '^tcp:10\.99\.9\.1:7777 +optimized +off +none +listening +-$'
  says status ' tcp:10\.99\.9\.1:7777 +connected '
  ctl access tcp:10.99.9.1:7777 non-optimized
}
it "server: an address that comes later is listened on then, others at once" late_address

only_address() {
  two_hosts
  spawn server "${server_command[@]}" --listen tcp:10.99.9.1:7777 --export disk0=memory:1M
  wait_for_line server.log 'ready, listening on no address yet \(waiting for tcp:10\.99\.9\.1:7777\)'
  stop server
  spawn server "${server_command[@]}" --listen tcp:10.99.9.1:7777 --export disk0=memory:1M
  wait_for_line server.log 'ready'
  ip -n "$far" addr add 10.99.9.1/24 dev cable0
  wait_for_line server.log 'listening on tcp:10\.99\.9\.1:7777 now'
}
it "server: comes up, and leaves, also without any address that it was told" only_address

late_name() {
  two_hosts
  requires unshare
  cp /etc/hosts hosts
  # shellcheck disable=SC2016 # expanded by that shell
  server_command=(unshare --mount sh -c 'mount --bind "$0" /etc/hosts && exec "$@"' "$PWD/hosts" "${server_command[@]}")
  start_server --listen tcp:late.rnbd.test:7778 --export disk0=memory:1M
  says server.log "cannot resolve host 'late\.rnbd\.test'.*tried again every second"
  says server.log 'waiting for tcp:late\.rnbd\.test:7778'
  echo '127.0.0.3 late.rnbd.test' >>hosts
  wait_for_line server.log 'listening on tcp:127\.0\.0\.3:7778 now'
}
it "server: a name to listen on that is not known yet is looked up again" late_name

no_family() {
  local library=${RNBD_NO_IPV6:-$build_dir/tests/integration/libno_ipv6.so}
  server_command=(env "LD_PRELOAD=${RNBD_PRELOAD:-} $library" "$server_program")
  bridge_command=(env "LD_PRELOAD=${RNBD_PRELOAD:-} $library" "$bridge_program")
  start_server --listen 'tcp:*:0' --listen 'tcp:[::1]:0' --export disk0=memory:1M
  says server.log 'ready, listening on tcp:127\.0\.0\.1:[0-9]+, tcp:0\.0\.0\.0:[0-9]+ \(waiting for tcp:\[::1\]:0\)'
  port=$(logged server.log '0\.0\.0\.0:[0-9]+')
  port=${port##*:}
  opens disk0 0
  start_bridge --listen 'tcp:*:0' --listen 'tcp:[::1]:0' "rnbd+tcp://127.0.0.1:$port/disk0"
  says bridge.log 'ready, listening on unix:.*, tcp:0\.0\.0\.0:[0-9]+ \(waiting for tcp:\[::1\]:0\)'
  port=$(logged bridge.log '0\.0\.0\.0:[0-9]+')
  [[ $(nbdinfo --size "nbd://127.0.0.1:${port##*:}") == 1048576 ]]
}
it "without IPv6 in the kernel all addresses are those of IPv4, and an address of IPv6 is waited for" no_family

bridge_address() {
  two_hosts
  start_server --listen tcp:10.99.0.1:7777 --export disk0=memory:1M
  start_bridge --listen tcp:10.99.9.2:10809 --control "$PWD/control" rnbd+tcp://10.99.0.1:7777/disk0
  says bridge.log 'cannot listen on tcp:10\.99\.9\.2:10809: .*tried again every second'
  says bridge.log 'ready, listening on unix:.* \(waiting for tcp:10\.99\.9\.2:10809\), in front of'
  ctl status | tee status
  says status '^tcp:10\.99\.9\.2:10809 +waiting +.*Cannot assign requested address'
  [[ $(nbdinfo --size "$uri") == 1048576 ]]
  ip -n "$near" link set lo up
  ip -n "$near" addr add 10.99.9.2/24 dev cable0
  wait_for_line bridge.log 'listening on tcp:10\.99\.9\.2:10809 now'
  [[ $(limit=20 limited ip netns exec "$near" nbdinfo --size nbd://10.99.9.2) == 1048576 ]]
  ctl status | tee status
  says status '^tcp:10\.99\.9\.2:10809 +listening +-$'
}
it "bridge: an address that comes later is listened on then, others at once" bridge_address

manager_hears() {
  cat >manager.py <<'PY'
import os, signal, socket, subprocess, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.bind(sys.argv[1])
s.settimeout(60)
child = subprocess.Popen(sys.argv[2:], env=dict(os.environ, NOTIFY_SOCKET=sys.argv[1]))
print(s.recv(4096).decode().replace("\n", "|"))
child.send_signal(signal.SIGTERM)
print(s.recv(4096).decode().replace("\n", "|"))
sys.exit(child.wait())
PY
  /usr/bin/python3 manager.py "$PWD/notify" "${server_command[@]}" --listen tcp:192.0.2.1:7 \
    --export "a=$PWD/image" --export b=memory:1M >told
  printf '%s\n' 'READY=1|STATUS=exporting a (waiting for its storage), b (1 MiB); listening on no address yet (waiting for tcp:192.0.2.1:7)|' \
    'STOPPING=1|' | diff - told
}
it "systemd: READY=1 also while something is waited for, and the status says what" manager_hears

finish
