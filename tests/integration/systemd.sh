#!/bin/bash
# The systemd units: accepted by systemd's own checker, sandboxed, installed where they belong.
source "${BASH_SOURCE[0]%/*}/lib.sh"

# Installs the server's part below root, as a package would.
install_server() {
  requires cmake
  DESTDIR=$PWD/root cmake --install "$build_dir" --prefix /usr --component server >install.log
}

# The installed units, with the installed program's real place.
units_for_check() {
  install_server
  mkdir units
  local unit
  for unit in root/usr/lib/systemd/system/rnbd-server.{service,socket}; do
    sed "s#=/[a-z/]*/sbin/rnbd-server#=$PWD/root/usr/sbin/rnbd-server#" "$unit" >"units/${unit##*/}"
  done
  says units/rnbd-server.service "^ExecStart=$PWD/root/usr/sbin/rnbd-server --config"
}

verify() {
  requires systemd-analyze
  units_for_check
  # Warnings count: the checker prints nothing about a unit that is right.
  limited systemd-analyze verify --man=no units/rnbd-server.service units/rnbd-server.socket \
    >verify.out 2>&1 || { cat verify.out; fail "systemd-analyze verify refuses the units"; }
  grep 'rnbd-server' verify.out && fail "systemd-analyze verify has remarks"
  return 0
}
it "systemd-analyze verify accepts the service and the socket" verify

score() {
  requires systemd-analyze
  units_for_check
  # --threshold counts tenths.
  limited systemd-analyze security --offline=yes --no-pager --threshold=20 \
    units/rnbd-server.service >security.out ||
    { tail -n 1 security.out; fail "the sandbox is more open than 2.0"; }
  tail -n 1 security.out
}
it "systemd-analyze security rates the sandbox 2.0 or better" score

files() {
  install_server
  local file
  for file in usr/sbin/rnbd-server usr/lib/systemd/system/rnbd-server.{service,socket} \
    usr/lib/sysusers.d/rnbd-server.conf usr/share/man/man8/rnbd-server.8 \
    usr/share/man/man5/rnbd-server.conf.5 usr/share/doc/rnbdkit/examples/rnbd-server.conf; do
    [[ -s root/$file ]] || fail "$file is not installed"
  done
  [[ ! -e root/etc ]] || fail "an installation must not touch /etc"
  says root/usr/lib/systemd/system/rnbd-server.service '^ExecStart=/usr/sbin/rnbd-server '
  says root/usr/lib/systemd/system/rnbd-server.service '^Type=notify$'
}
it "the server's files are installed where Debian expects them" files

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
  for page in man8/rnbd-server.8 man5/rnbd-server.conf.5; do
    MANWIDTH=100 limited man --warnings -l -Tutf8 "root/usr/share/man/$page" 2>>warnings |
      sed 's/.\x08//g' >"page.${page##*.}" # bold is overstruck
  done
  [[ ! -s warnings ]] || { cat warnings; fail "the man pages have mistakes"; }
  says page.8 'no authentication'
  says page.5 'read-only'
  # Every key of the file has its place in the page.
  local key
  for key in $("$server_program" --help | sed -n 's/^  --\([a-z-]*\).*/\1/p'); do
    [[ $key =~ ^(check-config|ready-fd|version|help)$ ]] || says page.5 "^ *$key( |$)"
  done
}
it "the man pages can be read, and name every key of the configuration file" pages

finish
