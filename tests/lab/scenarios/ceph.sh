# shellcheck shell=bash
# From a Ceph cluster to a disk of the kernel on another machine, by the commands of docs/ceph.md.
# SPDX-License-Identifier: BSD-3-Clause

# shellcheck source=/dev/null
source "$lab_dir/lib/kernel_disk.sh"
# shellcheck source=/dev/null
source "$lab_dir/lib/systemd.sh"
source "$source_dir/tests/tools/page.sh"
for program in ceph-mon ceph-osd rbd cmake; do
  if ! command -v "$program" >/dev/null; then
    echo "skip  $program is missing; contrib/install-packages ceph brings Ceph's"
    exit 77
  fi
done
if [[ ! -e $build_dir/bin/rnbd-backend-rbd.so ]]; then
  echo "skip  rnbd-backend-rbd.so is not built; it needs librbd-dev and RNBDKIT_RBD=ON"
  exit 77
fi

# page_is NUMBER PATTERN: the page has what runs here as its command.
page_is() { [[ ${page[$1]} =~ $2 ]] || fail "command $1 of the page is ${page[$1]}"; }

# The packages are made of the same files; tests/integration/packages.sh installs those.
make_files() {
  install_for_guests
  DESTDIR=$work_dir/gateway-files cmake --install "$build_dir" --prefix /usr --component rbd --strip \
    >>"$work_dir/install.log"
}
# install_on_gateway: in the guest.
install_on_gateway() {
  local folder
  for folder in installed gateway-files; do
    tar -C "/lab/$folder" -c . | tar -C / -x --no-same-owner --no-overwrite-dir --keep-directory-symlink
  done
}

# ---- The gateway -------------------------------------------------------------------------------------

# A guest may stand still for a while: its clients are not given up meanwhile.
start_cluster() {
  MANAGER=no WATCH_TIMEOUT=300 "$source_dir/tests/ceph/cluster" start /tmp/ceph
  "$source_dir/tests/ceph/cluster" client /tmp/ceph
}
end_cluster() { "$source_dir/tests/ceph/cluster" stop /tmp/ceph; }
by_hand() { bash -exc "$1"; }
# in_background COMMAND: of the page, with a file for its process.
in_background() {
  background rnbd-server bash -c "exec $1 --pid-file /run/rnbd-server.pid"
  eventually 60 ready_or_ended rnbd-server
}
# lies_in_cluster: what the client has written is in the image's objects.
lies_in_cluster() {
  rbd lock list rbd/disk0 | grep exclusive
  (($(rados -p rbd ls | grep -c '^rbd_data') > 0))
}

# ---- The client --------------------------------------------------------------------------------------

install_on_client() {
  [[ ! -e /etc/ceph/ceph.conf ]]
  install_systemd
  printf '127.0.0.1 localhost\n10.99.0.1 gateway.example\n' | machine_file /etc/hosts
  start_systemd
}
on_client() { in_systemd bash -exc "$1"; }
disk_is_there() {
  in_systemd test -b /dev/rnbd/by-name/disk0 &&
    [[ $(in_systemd blockdev --getsize64 /dev/rnbd/by-name/disk0) == $((10 << 30)) ]]
}
# mounted SCRIPT: runs it where the disk is mounted at /mnt/disk0, for nobody else: services that start meanwhile would
# keep the mount.
mounted() {
  in_systemd unshare -m bash -exc "mount /dev/rnbd/by-name/disk0 /mnt/disk0; $1; umount /mnt/disk0"
}
use_disk() {
  eventually 60 disk_is_there
  in_systemd mkfs.ext4 -q -F -E lazy_itable_init=1,lazy_journal_init=1,nodiscard /dev/rnbd/by-name/disk0
  mounted 'seq 100000 >/mnt/disk0/kept'
}
kept_file() {
  echo 3 >/proc/sys/vm/drop_caches
  in_systemd fsck.ext4 -fn /dev/rnbd/by-name/disk0
  mounted 'seq 100000 | cmp - /mnt/disk0/kept'
}
end_client() {
  in_systemd rnbd-ctl unmap disk0
  eventually 20 is_unmapped 0
  stop_systemd
}

# ---- The page ----------------------------------------------------------------------------------------

by_the_page() {
  local page
  mapfile -t page < <(page_commands "$source_dir/docs/ceph.md" "From a cluster to a disk of the kernel")
  ((${#page[@]} == 6)) || fail "the page has ${#page[@]} commands"
  make_files
  on gateway start_cluster
  page_is 0 '^ceph auth get-or-create client.rnbd '
  on gateway by_hand "${page[0]}"
  page_is 1 '^rbd create --size 10G rbd/disk0$'
  on gateway by_hand "${page[1]}"
  page_is 2 '^apt install ./rnbd-server_\*.deb ./rnbd-server-rbd_\*.deb$'
  on gateway install_on_gateway
  page_is 3 '^rnbd-server --listen tcp:0.0.0.0:1234 .*=rbd:rbd/disk0,id=rnbd$'
  on gateway in_background "${page[3]}"
  page_is 4 '^apt install ./rnbd-bridge_\*.deb ./rnbd-ctl_\*.deb$'
  on client install_on_client
  page_is 5 '^rnbd-ctl map disk0 from gateway.example --persist$'
  on client on_client "${page[5]}"
  on client use_disk
  on client kept_file
  on gateway lies_in_cluster
  # Nobody maps it again; kernel-boot has what a reset does to a disk.
  on client stop_systemd
  on client start_systemd
  on client eventually 60 disk_is_there
  on client kept_file
  on client fio_verify /dev/nbd0 --size=4m
  on client end_client
  on gateway stop rnbd-server
  on gateway end_cluster
}

limit=600
boot gateway client
it "the page's six commands lead to a disk of the kernel, which is there after a new start, too" by_the_page
finish
