#!/bin/bash
# The packages of a Debian release (SUITE), built in a clean root of it by contrib/build-packages; then a clean
# machine of that release on which they are installed, used, upgraded, removed and purged.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"
# shellcheck source-path=SCRIPTDIR
source "${BASH_SOURCE[0]%/*}/machine.sh"

suite=${SUITE:-trixie}
made=$build_dir/packages/$suite
clean=$build_dir/packages/root-$suite

# RNBD_PACKAGES=FOLDER has packages that are there already.
built() {
  requires debootstrap
  ((EUID == 0)) || skip "only root makes another Debian"
  [[ -z ${RNBD_PACKAGES-} ]] || { made=$RNBD_PACKAGES && return; }
  debootstrap --print-debs "$suite" "$PWD/names" >names.log 2>&1 || skip "debootstrap cannot fetch $suite"
  rm -rf "$made"
  "$source_dir/contrib/build-packages" "$suite" --output "$build_dir/packages" --ccache "$build_dir/packages/ccache"
}
it "the packages of $suite are built in a clean root, and lintian accepts them" built

# A machine with what a minimal Debian has, and packages of it that are fetched and not installed.
clean_machine() {
  [[ -z ${RNBD_PACKAGES-} ]] || made=$RNBD_PACKAGES
  compgen -G "$made/*.deb" >/dev/null || skip "there are no packages, see the first case"
  if [[ ! -e $clean/finished ]]; then
    rm -rf "$clean"
    debootstrap --variant=minbase --include=systemd-sysv,dbus,udev,iproute2 "$suite" "$clean" >debootstrap.log 2>&1 ||
      skip "debootstrap cannot fetch $suite: $(tail -n 1 debootstrap.log)"
    echo force-unsafe-io >"$clean/etc/dpkg/dpkg.cfg.d/test"
    touch "$clean/finished"
  fi
  make_machine "$clean"
  mkdir "$machine/files/root/packages"
  cp "$made"/*.deb "$machine/files/root/packages/"
  rm -f "$machine"/files/root/packages/*dbgsym*
  put /etc/resolv.conf <<<"$(</etc/resolv.conf)"
  apt_offline update
  mapfile -t ours < <(cd "$machine/files" && printf '/%s\n' root/packages/{rnbd-{server,bridge,ctl,initramfs},nbdkit-plugin-rnbd,python3-rtrs,librtrs0}_*.deb)
  apt_offline install -y --no-install-recommends --download-only "${ours[@]}" libnbd-bin
}
# Before it starts: then it has no way out.
apt_offline() { in_files env DEBIAN_FRONTEND=noninteractive apt-get "$@" >>apt.log 2>&1 || { tail apt.log && fail "apt-get $1"; }; }
apt_inside() { in_machine env DEBIAN_FRONTEND=noninteractive apt-get "$@" >>apt.log 2>&1 || { tail -n 20 apt.log && fail "apt-get $1"; }; }
# Not what dpkg, apt and systemd keep for themselves.
files_inside() {
  in_machine find / -xdev \( -path /var/lib/dpkg -o -path /var/lib/apt -o -path /var/cache -o -path /var/log -o \
    -path /var/lib/systemd -o -path /var/lib/ucf -o -path /var/lib/initramfs-tools -o -path /root -o -path /tmp -o \
    -path /var/tmp -o -path '/etc/ld.so.cache' -o -path '*/__pycache__' \) -prune -o -print | sort
}

lives() {
  clean_machine
  start_machine
  apt_inside install -y --no-install-recommends libnbd-bin
  apt_inside install -y --no-install-recommends "${ours[@]}"
  # shellcheck disable=SC2016 # dpkg's
  in_machine dpkg-query -W -f '${db:Status-Abbrev} ${Package} ${Version}\n' '*rnbd*' '*rtrs*' | grep '^ii'
  # Nothing runs that was not asked for.
  [[ $(in_machine systemctl is-active rnbd-server || true) == inactive ]] || fail "the server runs"
  [[ $(in_machine systemctl is-enabled rnbd-server || true) == disabled ]] || fail "the server is enabled"

  in_machine install -d -o rnbd -g rnbd -m 750 /var/lib/rnbd
  in_machine install -o rnbd -g rnbd -m 600 /dev/null /var/lib/rnbd/disk0.img
  in_machine truncate -s 16M /var/lib/rnbd/disk0.img
  in_machine tee /etc/rnbd-server.conf >/dev/null <<'CONF'
[server]
listen = ["tcp:127.0.0.1:1234"]
[export.disk0]
storage = "/var/lib/rnbd/disk0.img"
CONF
  in_machine rnbd-server --config /etc/rnbd-server.conf --check-config
  in_machine systemctl enable --now rnbd-server
  in_machine mkdir -p /etc/rnbd-bridge
  in_machine tee /etc/rnbd-bridge/disk0.conf >/dev/null <<'CONF'
URI=rnbd+tcp://127.0.0.1/disk0
OPTIONS="--control /run/rnbd-bridge/disk0/control"
CONF
  in_machine systemctl enable --now rnbd-bridge@disk0.socket
  local uri='nbd+unix:///?socket=/run/rnbd/disk0.sock' bridge server
  in_machine bash -exc "
    head -c 8M /dev/urandom >/root/in
    nbdinfo '$uri'
    nbdcopy /root/in '$uri'
    nbdkit -U - rnbd rnbd+tcp://127.0.0.1/disk0 --run 'nbdcopy \"\$uri\" /root/out'
    cmp -n 8388608 /root/in /root/out
    cmp -n 8388608 /root/in /var/lib/rnbd/disk0.img
    rnbd-ctl list
    rnbd-ctl check"

  # An upgrade restarts the server, and leaves the bridge and its clients alone.
  bridge=$(in_machine systemctl show -P MainPID rnbd-bridge@disk0)
  server=$(in_machine systemctl show -P MainPID rnbd-server)
  in_machine dpkg -i "${ours[@]:0:3}" 2>&1 | tail -n 12
  [[ $(in_machine systemctl show -P MainPID rnbd-bridge@disk0) == "$bridge" ]] || fail "the bridge was restarted"
  [[ $(in_machine systemctl show -P MainPID rnbd-server) != "$server" ]] || fail "the server was not restarted"
  in_machine nbdinfo --size "$uri"
  # This kernel may have no nbd: then the disk is refused in words, and a guest of the lab has it.
  in_machine rnbd-ctl map disk0 from 127.0.0.1 2>&1 | tee map.txt || true

  in_machine systemctl disable --now rnbd-bridge@disk0.socket rnbd-bridge@disk0.service rnbd-server
  in_machine rnbd-ctl unmap disk0 || true
  local names=(rnbd-{server,bridge,ctl,initramfs} nbdkit-plugin-rnbd python3-rtrs librtrs0)
  apt_inside remove -y "${names[@]}"
  in_machine systemctl daemon-reload
  in_machine systemctl list-units --all --plain --no-legend 'rnbd*' | tee units.txt
  [[ ! -s units.txt ]] || fail "the units above are left"
  in_machine rm -rf /etc/rnbd-server.conf /etc/rnbd-bridge /var/lib/rnbd/disk0.img # its owner's
  in_machine dpkg --purge "${names[@]}"
  files_inside >after.txt
  grep -E 'rnbd|rtrs' after.txt | tee left.txt || true
  [[ ! -s left.txt ]] || fail "the files above are left"
  in_machine systemctl is-system-running
  shut_down_machine
}
it "on a clean $suite they are installed, serve and attach a disk, are upgraded, removed and purged" lives

finish
