#!/bin/bash
# What `cmake --install` puts where, and that it works from there.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"

# install_into DIRECTORY [PREFIX]
install_into() {
  requires cmake
  DESTDIR=$1 cmake --install "$build_dir" --prefix "${2:-/usr}" >install.txt
  (cd "$1" && find . -type f -o -type l | sed 's/^\.//' | sort) >files.txt
  cat files.txt
}

where_debian_expects() {
  install_into "$PWD/root"
  local plugins path
  plugins=$(pkg-config --variable=plugindir nbdkit)
  for path in /usr/sbin/rnbd-{server,bridge,ctl} "$plugins/nbdkit-rnbd-plugin.so" \
    /usr/lib/systemd/system/rnbd-server.service /usr/lib/systemd/system/rnbd-server.socket \
    /usr/lib/sysusers.d/rnbd-server.conf /usr/share/man/man1/nbdkit-rnbd-plugin.1 \
    /usr/share/man/man8/rnbd-{server,bridge,ctl}.8 /usr/share/man/man5/rnbd-server.conf.5; do
    grep -qxF "$path" files.txt || fail "$path was not installed"
  done
}
it "programs, plugin, man pages and units are where Debian expects them" where_debian_expects

nothing_odd() {
  requires readelf
  install_into "$PWD/root"
  local file
  grep -vE '^/usr/(bin|sbin|lib|share|include)/' files.txt >odd.txt || true
  [[ ! -s odd.txt ]] || fail "installed at odd places: $(<odd.txt)"
  grep -E '/(doctest|nbdload|rnbd-sim|unit_|fuzz_|conformance)' files.txt >tests.txt || true
  [[ ! -s tests.txt ]] || fail "tests are installed: $(<tests.txt)"
  [[ -z $(find root -type d ! -perm -o=x) ]] || fail "a directory that nobody may enter"
  [[ -z $(find root \( -type f -o -type d \) -perm -o=w) ]] || fail "something is world-writable"
  [[ -z $(find root/usr/share root/usr/lib/systemd -type f -perm /111 -not -path '*/initramfs-tools/*') ]] ||
    fail "a data file has the run bit"
  [[ -x root/usr/sbin/rnbd-server ]] || fail "rnbd-server lacks the run bit"
  while read -r file; do
    if readelf -d "root$file" 2>/dev/null | grep -E 'RPATH|RUNPATH'; then
      fail "$file has an RPATH"
    fi
  done <files.txt
  if grep -rIlF "$build_dir" root; then fail "the files above name the build folder"; fi
  if grep -rIlE '@[A-Z_]+@' root; then fail "the files above have unreplaced placeholders"; fi
}
it "nothing is installed that should not be, with wrong modes, or with paths of the build" nothing_odd

another_prefix() {
  install_into "$PWD/root" /opt/rnbdkit
  grep -q '/opt/rnbdkit/sbin/rnbd-server' \
    root/opt/rnbdkit/lib/systemd/system/rnbd-server.service ||
    fail "the unit does not start the program of its prefix"
}
it "another prefix is honoured, also inside the unit" another_prefix

installed_plugin() {
  [[ -z $sanitizer ]] || skip "the sanitizer's library would have to be loaded first"
  install_into "$PWD/root"
  local module
  module=$(find root -name nbdkit-rnbd-plugin.so)
  nbdkit --dump-plugin "$PWD/$module" | tee dump.txt
  says dump.txt '^name=rnbd$'
  says dump.txt '^version='
  says dump.txt '^max_thread_model=parallel$'
  says dump.txt '^magic_config_key=uri$'
  nbdkit "$PWD/$module" --help | tee help.txt
  says help.txt 'uri='
}
it "the installed plugin describes itself" installed_plugin

installed_server() {
  install_into "$PWD/root"
  server_program=$PWD/root/usr/sbin/rnbd-server
  server_command=("$server_program")
  "$server_program" --version | tee version.txt
  says version.txt '[0-9]+\.[0-9]+\.[0-9]+'
  "$server_program" --help | tee help.txt
  says help.txt '\-\-export'
  says help.txt '\-\-listen'
  start_server --export disk0=memory:1M
  attach disk0
  nbdinfo --size "$uri"
}
it "the installed server says its version and serves" installed_server

man_pages() {
  requires man
  install_into "$PWD/root"
  local page
  while read -r page; do
    LC_ALL=C.UTF-8 MANROFFSEQ='' man --warnings -E UTF-8 -l -Tutf8 -Z "root$page" \
      >/dev/null 2>warnings.txt
    [[ ! -s warnings.txt ]] || fail "$page: $(<warnings.txt)"
    LC_ALL=C.UTF-8 man -l "root$page" | col -b >text.txt
    says text.txt '^NAME'
    says text.txt '^SYNOPSIS|^FORMAT|^DESCRIPTION'
    says text.txt '^SEE ALSO'
  done < <(grep '^/usr/share/man/' files.txt)
}
it "the man pages have no formatting errors and the usual sections" man_pages

units() {
  requires systemd-analyze
  install_into "$PWD/root"
  local unit
  for unit in root/usr/lib/systemd/system/rnbd-server.*; do
    [[ -f $unit ]] || continue # drop-ins
    # The program of the unit is not installed on this machine.
    sed "s|/usr/sbin/rnbd-server|$PWD/root/usr/sbin/rnbd-server|" "$unit" >"${unit##*/}"
  done
  systemd-analyze verify --man=no "$PWD/rnbd-server.service" "$PWD/rnbd-server.socket" 2>&1 | tee verify.txt
  if grep -E 'rnbd-server\.(service|socket)' verify.txt; then fail "systemd-analyze complains"; fi
  systemd-analyze security --offline=true --threshold=30 "$PWD/rnbd-server.service" | tail -n 1
}
it "systemd-analyze accepts the units and finds the sandbox tight" units

example_config() {
  install_into "$PWD/root"
  local example
  example=$(find root -path '*/examples/rnbd-server.conf')
  [[ -n $example ]] || skip "no example configuration is installed"
  # The example must be readable as it is; what it exports need not exist here.
  "$server_program" --check-config --config "$example" >out.txt 2>&1 || true
  cat out.txt
  if grep -E "rnbd-server\.conf:[0-9]+" out.txt; then fail "the example has mistakes"; fi
}
it "the example configuration has no mistakes" example_config

finish
