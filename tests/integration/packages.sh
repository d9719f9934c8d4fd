#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# The Debian packages: they build, lintian accepts them, and the disk of one program reaches another
# on a machine that has nothing but them.
source "${BASH_SOURCE[0]%/*}/made_packages.sh"

# on_clean_root COMMAND...: with the root of this machine as it is, in namespaces of its own: what is
# installed there is gone afterwards.
on_clean_root() {
  requires unshare ip chroot
  mkdir -p overlay
  # shellcheck disable=SC2016 # the inner shell's
  SOURCE=$source_dir unshare --mount --net --pid --fork bash -euc '
    mount -t tmpfs tmpfs overlay
    mkdir overlay/{upper,work,root}
    mount -t overlay -o "lowerdir=/,upperdir=overlay/upper,workdir=overlay/work" overlay overlay/root
    for folder in dev sys; do mount --rbind "/$folder" "overlay/root/$folder"; done
    mount -t proc proc overlay/root/proc
    mount -t tmpfs tmpfs overlay/root/run
    mount -t tmpfs tmpfs overlay/root/tmp
    # The tree may be in a folder that has just been covered.
    mkdir -p "overlay/root$SOURCE"
    mount --bind "$SOURCE" "overlay/root$SOURCE"
    mkdir overlay/root/run/packages
    cp "$1"/*.deb overlay/root/run/packages/
    ip link set lo up
    shift
    exec chroot overlay/root "$@"' bash "$work_dir/packages" "$@"
}

lintian_accepts() {
  packages
  requires lintian
  lintian --fail-on error --no-tag-display-limit --allow-root "$work_dir"/packages/*.changes | tee lintian.txt ||
    fail "lintian finds errors"
}
it "the packages build and lintian finds no error in them" lintian_accepts

contents() {
  packages
  local package file
  while read -r package file; do
    dpkg-deb -c "$work_dir"/packages/"$package"_*.deb | awk '{ print $6 }' >"$package.txt"
    grep -qE "^\./$file\$" "$package.txt" || fail "$package has no $file"
  done <<'FILES'
rnbd-server usr/sbin/rnbd-server
rnbd-server (usr/)?lib/systemd/system/rnbd-server.service
rnbd-server usr/lib/sysusers.d/rnbd-server.conf
rnbd-server usr/share/man/man5/rnbd-server.conf.5.gz
rnbd-bridge usr/sbin/rnbd-bridge
rnbd-bridge (usr/)?lib/systemd/system/rnbd-bridge@.service
rnbd-bridge (usr/)?lib/systemd/system/rnbd-map@.service
rnbd-bridge (usr/)?lib/systemd/system/rnbd-maps@.service
rnbd-bridge usr/lib/udev/rules.d/60-rnbd.rules
rnbd-bridge etc/needrestart/conf.d/rnbd-bridge.conf
rnbd-initramfs usr/lib/rnbdkit/root-disk/attach
rnbd-initramfs usr/share/initramfs-tools/hooks/rnbd
rnbd-initramfs usr/share/initramfs-tools/conf-hooks.d/rnbd
rnbd-initramfs usr/lib/dracut/modules.d/95rnbd/module-setup.sh
rnbd-initramfs usr/share/man/man7/rnbd-root.7.gz
rnbd-ctl usr/sbin/rnbd-ctl
rnbd-ctl usr/share/bash-completion/completions/rnbd-ctl
nbdkit-plugin-rnbd usr/lib/.*/nbdkit/plugins/nbdkit-rnbd-plugin.so
librtrs0 usr/lib/.*/librtrs.so.0
librtrs-dev usr/lib/.*/librtrs.so
librtrs-dev usr/lib/.*/pkgconfig/rtrs.pc
librtrs-dev usr/include/rtrs.hpp
librtrs-dev usr/share/doc/librtrs-dev/examples/echo/client.cpp
librnbd0 usr/lib/.*/librnbd.so.0
librnbd-dev usr/lib/.*/librnbd.so
librnbd-dev usr/lib/.*/pkgconfig/rnbd.pc
librnbd-dev usr/include/rnbd.h
librnbd-dev usr/share/man/man3/rnbd.3.gz
librnbd-dev usr/share/doc/librnbd-dev/examples/disk/disk.c
librnbd-dev usr/share/doc/librnbd-dev/examples/fio/rnbd.c
python3-rnbd usr/lib/python3/dist-packages/rnbd/__init__.py
python3-rtrs usr/lib/python3/dist-packages/rtrs/__init__.py
rnbdkit-doc usr/share/doc/rnbdkit-doc/protocol.md(.gz)?
FILES
  # What it writes for shared bridges an older bridge does not know.
  dpkg-deb -f "$work_dir"/packages/rnbd-ctl_*.deb Breaks | tee breaks.txt
  says breaks.txt '^rnbd-bridge \(<< [0-9]'
}
it "each package has its programs, units and manual pages" contents

module() {
  packages
  local package=("$work_dir"/packages/rnbd-server-rbd_*.deb)
  [[ -e ${package[0]} ]] || skip "built without librbd-dev: contrib/install-packages ceph"
  dpkg-deb -c "${package[0]}" >files.txt
  says files.txt '/rnbdkit/rnbd-backend-rbd\.so'
  dpkg-deb -f "${package[0]}" Depends | tee depends.txt
  says depends.txt 'librbd1'
  dpkg-deb -f "$work_dir"/packages/rnbd-server_*.deb Depends >server.txt
  ! grep -E 'librbd|librados' server.txt || fail "rnbd-server needs the libraries of Ceph"
  ((EUID == 0)) || return 0
  unshare --mount true 2>/dev/null || return 0
  # shellcheck disable=SC2016 # the inner shell's
  on_clean_root bash -euc '
    dpkg -i /run/packages/rnbd-server{,-rbd}_*.deb >/tmp/dpkg.log 2>&1 || { cat /tmp/dpkg.log; exit 1; }
    timeout 5 rnbd-server --listen tcp:127.0.0.1:0 --state-directory /tmp/state \
      --export disk0=rbd:rbd/disk0,conf=/nowhere || test $? = 124' >loaded.txt 2>&1 || true
  says loaded.txt "reading the cluster's configuration failed" # it is librbd that says so
}
it "the module for Ceph is a package of its own, and rnbd-server needs nothing of Ceph" module

scripts() {
  packages
  local package
  for package in rnbd-server rnbd-bridge; do
    dpkg-deb -e "$work_dir"/packages/"$package"_*.deb "$package"
  done
  says rnbd-server/postinst 'systemd-sysusers'
  says rnbd-server/postinst 'daemon-reload|deb-systemd'
  # Disks of this machine hang on the bridges: an upgrade leaves them alone.
  if grep -E 'deb-systemd-invoke (stop|restart)' rnbd-bridge/p*; then
    fail "an upgrade of rnbd-bridge ends the bridges that run"
  fi
}
it "an upgrade restarts the server, and leaves bridges alone" scripts

# As needrestart reads it: with its hash, and a pattern for each name.
needrestart() {
  packages
  requires perl
  dpkg-deb -x "$work_dir"/packages/rnbd-bridge_*.deb root
  perl -we '
    use strict;
    our %nrconf = (override_rc => {qr(^dbus) => 0});
    do "./root/etc/needrestart/conf.d/rnbd-bridge.conf" or die $@ || $!;
    for my $unit (map { "$_.service" } qw(rnbd-bridge@disk0 rnbd-map@disk0 rnbd-maps@a:1-0 rnbd-server dbus)) {
      my $alone = grep { $unit =~ /$_/ } keys %{$nrconf{override_rc}};
      print "$unit ", $alone ? "left alone" : "restarted", "\n";
    }' >said
  cat said
  [[ $(<said) == "rnbd-bridge@disk0.service left alone
rnbd-map@disk0.service restarted
rnbd-maps@a:1-0.service restarted
rnbd-server.service restarted
dbus.service left alone" ]] || fail "needrestart does otherwise"
}
it "after an upgrade of libraries needrestart leaves bridges with NBD clients alone" needrestart

purged() {
  packages
  ((EUID == 0)) || skip "only root makes namespaces with a root of their own"
  unshare --mount true 2>/dev/null || skip "this machine allows no mount namespaces"
  # shellcheck disable=SC2016 # the inner shell's
  on_clean_root bash -euc '
    dpkg -i /run/packages/rnbd-{server,bridge,ctl}_*.deb >/tmp/dpkg.log 2>&1 || { cat /tmp/dpkg.log; exit 1; }
    state=/var/lib/rnbd
    mkdir -p "$state" /etc/rnbd/map.d /etc/systemd/system/multi-user.target.wants
    truncate -s 1M "$state/own.img" "$state/vm1.new"
    timeout -s TERM 2 rnbd-server --listen tcp:127.0.0.1:0 --state-directory "$state" --export "disk0=$state/own.img" || true
    test -e "$state/server-id"
    truncate -s 1M "$state/exports/vm1.img"
    truncate -s 1G "$state/exports/01234567-89ab-cdef-0123-456789abcdee"
    record=01234567-89ab-cdef-0123-456789abcdef
    touch "$state"/{evicted,server-place}{,.new} "$state/members/$record"{,.new} \
      "$state/exports/.new-1" "$state/writers/${record//-/}"{,.new} /etc/rnbd/map.d/disk0.{conf,psk} /etc/rnbd/keys.psk
    ln -s /lib/systemd/system/rnbd-map@.service /etc/systemd/system/multi-user.target.wants/rnbd-map@disk0.service
    ln -s /lib/systemd/system/rnbd-maps@.service /etc/systemd/system/multi-user.target.wants/rnbd-maps@a:1-0.service
    dpkg -r rnbd-server rnbd-bridge >>/tmp/dpkg.log 2>&1
    test -e "$state/server-id"
    test -e /etc/rnbd/map.d/disk0.conf
    dpkg -P rnbd-server rnbd-bridge >>/tmp/dpkg.log 2>&1 || { cat /tmp/dpkg.log; exit 1; }
    find "$state" /etc/rnbd /etc/needrestart /etc/systemd/system/multi-user.target.wants/rnbd* 2>/dev/null | sort
    getent passwd rnbd' >left || { cat left; fail "they are not purged"; }
  cat left
  grep -v '^rnbd:' left >files
  [[ $(<files) == "/etc/rnbd
/etc/rnbd/keys.psk
/etc/rnbd/map.d
/etc/rnbd/map.d/disk0.conf
/etc/rnbd/map.d/disk0.psk
/var/lib/rnbd
/var/lib/rnbd/exports
/var/lib/rnbd/exports/01234567-89ab-cdef-0123-456789abcdee
/var/lib/rnbd/exports/vm1.img
/var/lib/rnbd/own.img
/var/lib/rnbd/vm1.new" ]] || fail "other files are left"
  says left '^rnbd:'
}
it "purged packages leave images, keys, mappings and the user, and no records or boot links" purged

hardened() {
  packages
  requires readelf
  local file
  for file in usr/sbin/rnbd-{server,bridge,ctl}; do
    dpkg-deb -x "$work_dir/packages/${file##*/}"_*.deb root
    readelf -dl "root/$file" >elf.txt
    says elf.txt 'BIND_NOW|\(FLAGS_1\).*NOW'
    says elf.txt 'GNU_RELRO'
    readelf -Ws --dyn-syms "root/$file" >symbols.txt
    says symbols.txt '__stack_chk_fail'
    says symbols.txt '_chk@'
    if readelf -S "root/$file" | grep -q '\.debug_info'; then fail "$file has debug information"; fi
  done
}
it "programs are hardened as Debian's own are, and stripped" hardened

works_installed() {
  packages
  ((EUID == 0)) || skip "only root makes namespaces with a root of their own"
  unshare --mount true 2>/dev/null || skip "this machine allows no mount namespaces"
  # shellcheck disable=SC2016 # the inner shell's
  on_clean_root bash -euc '
    rm /run/packages/rnbd-initramfs_*.deb # its initramfs-tools may not be here
    dpkg -i /run/packages/*.deb >/tmp/dpkg.log 2>&1 || { cat /tmp/dpkg.log; exit 1; }
    getent passwd rnbd
    AUTOPKGTEST_TMP=$(mktemp -d) exec bash -eu "$0"' "$source_dir/debian/tests/smoke"
}
it "a machine with the packages alone serves and attaches a disk" works_installed

library_installed() {
  packages
  requires pkg-config c++
  ((EUID == 0)) || skip "only root makes namespaces with a root of their own"
  unshare --mount true 2>/dev/null || skip "this machine allows no mount namespaces"
  # shellcheck disable=SC2016 # the inner shell's
  on_clean_root bash -euc '
    dpkg -i /run/packages/{librtrs0,librtrs-dev,python3-rtrs}_*.deb >/tmp/dpkg.log 2>&1 ||
      { cat /tmp/dpkg.log; exit 1; }
    AUTOPKGTEST_TMP=$(mktemp -d) exec bash -eu "$0"' "$source_dir/debian/tests/library"
}
it "with the library packages alone its examples compile and talk to each other" library_installed

finish
