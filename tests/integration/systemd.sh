#!/bin/bash
# The systemd units: accepted by systemd's own checker, sandboxed, installed where they belong, and
# what the bridge's starts.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"

# Installs the programs and their units below root, as a package would.
install_server() {
  requires cmake
  DESTDIR=$PWD/root cmake --install "$build_dir" --prefix /usr --component server >install.log
}

# The installed units, with the installed program's real place.
units_for_check() {
  install_server
  mkdir units
  local unit name
  for unit in root/usr/lib/systemd/system/rnbd-*.{service,socket}; do
    name=${unit##*/}
    sed "s#=/[a-z/]*/sbin/rnbd-#=$PWD/root/usr/sbin/rnbd-#" "$unit" >"units/${name/@/@disk0}"
  done
  says units/rnbd-server.service "^ExecStart=$PWD/root/usr/sbin/rnbd-server --config"
  says units/rnbd-bridge@disk0.service "^ExecStart=$PWD/root/usr/sbin/rnbd-bridge "
}

verify() {
  requires systemd-analyze
  units_for_check
  # Warnings count: the checker prints nothing about a unit that is right.
  limited systemd-analyze verify --man=no units/* >verify.out 2>&1 ||
    { cat verify.out; fail "systemd-analyze verify refuses the units"; }
  grep 'rnbd-' verify.out && fail "systemd-analyze verify has remarks"
  return 0
}
it "systemd-analyze verify accepts the services and the sockets" verify

score() {
  requires systemd-analyze
  units_for_check
  local unit most
  for unit in units/*.service; do
    # --threshold counts tenths.
    # The bridge of a kernel's disk has the one capability that the nbd driver asks for.
    [[ $unit == *rnbd-map* ]] && most=30 || most=20
    limited systemd-analyze security --offline=yes --no-pager --threshold="$most" "$unit" >security.out ||
      { tail -n 1 security.out; fail "the sandbox is more open than $most tenths"; }
    tail -n 1 security.out
  done
}
it "systemd-analyze security rates the sandboxes 2.0 or better, that of a kernel's disk 3.0" score

files() {
  install_server
  local file
  for file in usr/sbin/rnbd-{server,bridge} usr/lib/systemd/system/rnbd-server.{service,socket} \
    usr/lib/systemd/system/rnbd-map{,s}@.service usr/lib/udev/rules.d/60-rnbd.rules \
    usr/lib/modules-load.d/rnbd.conf usr/lib/modprobe.d/rnbd.conf \
    usr/lib/systemd/system/rnbd-bridge@.{service,socket} usr/lib/sysusers.d/rnbd-server.conf \
    usr/share/man/man8/rnbd-{server,bridge}.8 usr/share/man/man5/rnbd-server.conf.5 \
    usr/share/doc/rnbd-server/examples/rnbd-server.conf \
    usr/share/doc/rnbd-bridge/examples/rnbd-bridge.conf; do
    [[ -s root/$file ]] || fail "$file is not installed"
  done
  [[ ! -e root/etc ]] || fail "an installation must not touch /etc"
  says root/usr/lib/systemd/system/rnbd-server.service '^ExecStart=/usr/sbin/rnbd-server '
  says root/usr/lib/systemd/system/rnbd-server.service '^Type=notify$'
  says root/usr/lib/systemd/system/rnbd-bridge@.service '^ExecStart=/usr/sbin/rnbd-bridge '
  says root/usr/lib/systemd/system/rnbd-bridge@.service '^Type=notify$'
  says root/usr/lib/udev/rules.d/60-rnbd.rules 'IMPORT.program.="/usr/sbin/rnbd-ctl udev %k"'
  ! grep -rn '@[A-Z_]*@' root/usr/lib/{systemd,udev} || fail "a file still has a name to be replaced"
}
it "the files are installed where Debian expects them" files

restarts() {
  install_server
  local unit
  for unit in root/usr/lib/systemd/system/rnbd-{server,bridge@}.service; do
    says "$unit" '^Restart=always$'
    says "$unit" '^RestartPreventExitStatus=2$'
    says "$unit" '^RestartSec=1$'
    says "$unit" '^StartLimitIntervalSec=0$'
  done
}
it "the services are started again for as long as it takes, but for a wrong command line or file" restarts

boot_id() {
  install_server
  ! grep -E '^ProcSubset=pid|^InaccessiblePaths=.*/proc' root/usr/lib/systemd/system/rnbd-server.service ||
    fail "the server cannot see the machine's boot_id: restarts look like crashes to its clients"
}
it "the server's sandbox lets it tell a restart from a crash of the machine" boot_id

users() {
  requires systemd-sysusers
  install_server
  mkdir -p root/etc
  limited systemd-sysusers --root="$PWD/root" >sysusers.out 2>&1 || { cat sysusers.out; fail; }
  says root/etc/passwd '^rnbd:.*/var/lib/rnbd:'
  says root/etc/group '^rnbd:'
}
it "systemd-sysusers creates the server's user" users

pages() {
  requires man
  install_server
  local page
  for page in man8/rnbd-{server,bridge}.8 man5/rnbd-server.conf.5; do
    MANWIDTH=100 limited man --warnings -l -Tutf8 "root/usr/share/man/$page" 2>>warnings |
      sed 's/.\x08//g' >"${page##*/}" # bold is overstruck
  done
  [[ ! -s warnings ]] || { cat warnings; fail "the man pages have mistakes"; }
  says rnbd-server.8 'no authentication'
  says rnbd-server.conf.5 'read-only'
  # Every key of the file has its place in the page (those of --search-rw and -ro are in a table), and every option of the bridge.
  local key
  for key in $("$server_program" --help | sed -n 's/^  --\([a-z-]*\).*/\1/p'); do
    [[ $key =~ ^(check-config|ready-fd|version|help|search-r[wo])$ ]] || says rnbd-server.conf.5 "^ *$key( |$)"
  done
  for key in $("$bridge_program" --help | grep -oE '^ *(-., ?)?--[a-z-]+' | grep -oE '[-]-[a-z-]+'); do
    says rnbd-bridge.8 "^ *(-., ?)?$key( |,|$)|, $key( |$)"
  done
}
it "the man pages can be read, and name every key of the configuration file and option" pages

# ---- --check-config for the service -----------------------------------------------------------------

# A machine of its own for `"${on_machine[@]}" COMMAND...`: /etc has the user rnbd, /run has no systemd,
# and /etc/rnbd-server.conf exports $PWD/disks/image, which root alone may open.
own_machine() {
  ((EUID == 0)) || skip "only root mounts"
  requires unshare
  requires setpriv
  unshare --mount true || skip "no mount namespaces here"
  chmod 755 . ..
  mkdir bin run disks
  truncate -s 1M disks/image
  chmod 600 disks/image
  cp -a /etc etc
  sed -i '/^rnbd:/d' etc/passwd etc/group
  echo 'rnbd:x:64321:64321::/var/lib/rnbd:/usr/sbin/nologin' >>etc/passwd
  echo 'rnbd:x:64321:' >>etc/group
  printf '[export.b]\nstorage = "memory:1M"\n[export.a]\npath = "%s/disks/image"\n' "$PWD" >etc/rnbd-server.conf
  chmod 644 etc/rnbd-server.conf
  # shellcheck disable=SC2016 # expanded by that shell
  on_machine=(env "PATH=$PWD/bin:$PATH" unshare --mount
    sh -c 'mount --bind etc /etc && mount --bind run /run && exec "$@"' sh)
}
check_of_service() {
  status_of "$1" "${on_machine[@]}" "${server_command[@]}" --config /etc/rnbd-server.conf --check-config
}

as_user() {
  own_machine
  check_of_service 1
  says said "rnbd-server.conf:3: export 'a': .*permission denied"
  ! grep -q correct said || fail "it is correct"
  chown 64321 disks/image
  check_of_service 0
  says said 'judged with the rights of the user rnbd, but not in the sandbox'
  chmod 600 etc/rnbd-server.conf
  check_of_service 1
  says said 'rnbd-server.conf: .*rnbd may not read it'
  cp etc/rnbd-server.conf other.conf
  status_of 0 "${on_machine[@]}" "${server_command[@]}" --config other.conf --check-config
  says said 'judged with the rights of the user root; those of rnbd-server.service'
}
it "--check-config by root: storage that the service's user may not open is wrong" as_user

in_sandbox() {
  own_machine
  chown 64321 disks/image
  mkdir -p run/systemd/system
  cat >bin/systemctl <<'END'
#!/bin/sh
printf '%s\n' LoadState=loaded User=rnbd Group= ProtectSystem=strict 'ReadWritePaths=-/srv/rnbd' \
  'DeviceAllow=block-* rw' 'DeviceAllow=char-infiniband_verbs rw'
END
  # What systemd makes of these properties, as far as it is needed here.
  cat >bin/systemd-run <<'END'
#!/bin/sh
while [ "$1" != -- ]; do
  printf '%s\n' "$1" >>run/options
  case $1 in --setenv=*) export "${1#--setenv=}" ;; esac
  shift
done
shift
mount --bind disks disks && mount -o remount,ro,bind disks
export INVOCATION_ID=1
exec setpriv --reuid=64321 --regid=64321 --clear-groups "$@"
END
  chmod +x bin/*
  check_of_service 1
  says said "export 'a': .*read-only file system.*ReadWritePaths="
  grep '^--property' run/options >properties
  printf -- '--property=%s\n' User=rnbd ProtectSystem=strict ReadWritePaths=-/srv/rnbd 'DeviceAllow=block-* rw' \
    'DeviceAllow=char-infiniband_verbs rw' | diff - properties
  printf '#!/bin/sh\necho LoadState=not-found\n' >bin/systemctl
  check_of_service 0
  says said 'judged with the rights of the user rnbd, but not in the sandbox'
}
it "--check-config by root: under systemd the check has the unit's user and sandbox" in_sandbox

# The command line of the bridge's unit with the settings of a file. systemd expands $OPTIONS and
# ${URI} as a shell does, as long as nothing is quoted in them.
from_unit() {
  requires systemd-socket-activate
  install_server
  start_server --export disk0=memory:1M
  local socket=$PWD/disk0.sock command
  sed "s#^URI=.*#URI=rnbd+tcp://$address/disk0#; s@^#OPTIONS=\(.*--access.*\)@OPTIONS=\1@" \
    root/usr/share/doc/rnbd-bridge/examples/rnbd-bridge.conf >disk0.conf
  says disk0.conf '^OPTIONS=.*--access ro'
  command=$(sed -n "s#^ExecStart=#$PWD/root#p" root/usr/lib/systemd/system/rnbd-bridge@.service)
  # shellcheck disable=SC1091
  spawn bridge bash -c "set -a; . ./disk0.conf
    exec systemd-socket-activate -E OPTIONS -E URI -l '$socket' $command"
  eventually 10 test -S "$socket"
  nbdinfo --json "nbd+unix:///?socket=$socket" >info.json
  says info.json '"export-size": 1048576'
  says info.json '"is_read_only": true'
}
it "the bridge's unit and example start it on the manager's socket, in front of the named disk" \
  from_unit

finish
