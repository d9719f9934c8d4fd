# shellcheck shell=bash
# SPDX-License-Identifier: BSD-3-Clause
# A guest with Debian's kernel and an initramfs of its own, for qemu. Source it behind lib.sh.

# fetch_kernel: unpacks a Debian kernel package into the build folder, once; $kernel and $modules are then set.
fetch_kernel() {
  local store=${RNBD_GUEST_DIR:-$build_dir/guest} package release
  mkdir -p "$store"
  # Several scripts may come at a time.
  local lock
  exec {lock}>"$store/lock"
  flock "$lock"
  if [[ ! -e $store/done ]]; then
    requires apt-get dpkg-deb
    package=$(apt-cache depends linux-image-cloud-amd64 2>/dev/null |
      awk '/Depends: linux-image/ { print $2; exit }') || true
    [[ -n $package ]] || skip "apt knows no kernel package"
    (cd "$store" && limited apt-get -o APT::Sandbox::User=root download -q "$package") || skip "cannot download $package"
    dpkg-deb -x "$store"/linux-image-*.deb "$store/root"
    rm -f "$store"/linux-image-*.deb
    release=$(echo "$store"/root/lib/modules/*)
    busybox depmod -b "$store/root" "${release##*/}"
    touch "$store/done"
  fi
  exec {lock}>&-
  kernel=$(echo "$store"/root/boot/vmlinuz-*)
  modules=$(echo "$store"/root/lib/modules/*)
}

# needed_modules NAME...: their files and those they depend on, in the order of loading.
needed_modules() {
  local name
  for name in "$@"; do
    awk -F: -v name="/$name.ko" '{ sub(/\.xz$/, "", $1) } substr($1, length($1) - length(name) + 1) == name {
      n = split($2, d, " "); for (i = n; i > 0; i--) print d[i]; print $1 }' "$modules/modules.dep"
  done | awk '!seen[$0]++'
}

# add_program PATH: the program and its libraries, at their places.
add_program() {
  local file
  while read -r file; do
    mkdir -p "tree/$(dirname "$file")"
    cp -L "$file" "tree/$file"
  done < <(echo "$1" && ldd "$1" | grep -o '/[^ ]*')
}

# make_initramfs MODULE...: initramfs.gz, whose script comes on standard input. It runs when the modules are loaded
# and /dev/vda is there, with the serial port for its output; then the guest is powered off. What is in tree/
# is taken along.
make_initramfs() {
  local file
  mkdir -p tree/bin tree/dev tree/proc tree/sys tree/tmp tree/mnt tree/modules
  cp "$(command -v busybox)" tree/bin/busybox
  : >tree/modules/order
  while read -r file; do
    if [[ -f $modules/$file.xz ]]; then
      xz -dc "$modules/$file.xz" >"tree/modules/${file##*/}"
    else
      cp "$modules/$file" tree/modules/
    fi
    echo "${file##*/}" >>tree/modules/order
  done < <(needed_modules virtio_pci virtio_blk "$@")
  cat >tree/init <<'INIT'
#!/bin/busybox sh
export PATH=/bin:/usr/bin:/usr/sbin:/sbin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
while read -r module; do insmod "/modules/$module"; done </modules/order
i=0
until [ -b /dev/vda ] || [ $i -ge 100 ]; do i=$((i + 1)); usleep 100000; done
{ echo && . /script; } >/dev/ttyS0 2>&1
poweroff -f
INIT
  chmod +x tree/init
  cat >tree/script
  (cd tree && find . | busybox cpio -o -H newc 2>/dev/null | gzip -1) >initramfs.gz
}
