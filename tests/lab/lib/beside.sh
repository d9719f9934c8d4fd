# shellcheck shell=bash
# md RAID1 and DRBD over two of our disks, beside a mirror of ours: for scenarios with the guests `server`, whose servers
# have the copies, and `client`, which uses them. With DRBD each guest has one copy, and the client is primary.
# A scenario says how the servers begin: copy_a, copy_b and copies.
# SPDX-License-Identifier: BSD-3-Clause

# shellcheck source=/dev/null
source "$lab_dir/lib/kernel_disk.sh"
# shellcheck source=/dev/null
source "$lab_dir/lib/members.sh"

# map_copy NAME PORT: one copy as a disk of the kernel, whose requests fail when its server is gone.
map_copy() { map "$1" "rnbd+tcp://10.99.0.1:$2/disk0" --no-path-timeout 2s --reconnect-max 500ms; }
disk_of() { # NAME
  local file
  for file in /sys/block/nbd*/backend; do
    [[ $(<"$file") != rnbd:*:"$1" ]] || basename "/dev/${file%/backend}"
  done
}

# content DEVICE [PLACE]: what each of eight reads finds, since a system may ask its copies in turn.
content() {
  local letter
  for letter in {O,N}{,,,,,,,}; do
    ! block_is "$1" "${2:-3}" "$letter" >/dev/null || echo "$letter"
  done | sort -u | sed 's/O/OLD/; s/N/NEW/'
}

# ---- md ------------------------------------------------------------------------------------------------

md() { MDADM_NO_UDEV=1 mdadm "$@"; }
md_disks() {
  modprobe -a md_mod raid1
  map_copy a 1234
  map_copy b 1235
}
# Regions of its bitmap are as small as those of the mirror.
md_new() {
  md_disks
  md --create /dev/md0 --run --level=1 --raid-devices=2 --metadata=1.0 --assume-clean \
    --bitmap=internal --bitmap-chunk=1M "/dev/$(disk_of a)" "/dev/$(disk_of b)"
}
md_clean() { mdadm --examine-bitmap "/dev/$(disk_of a)" | grep -E 'Bitmap : .* 0 dirty'; }
md_whole() { [[ $(</sys/block/md0/md/sync_action) == idle && $(</sys/block/md0/md/degraded) == 0 ]]; }

begin_md() { on client md_new; }
device_of_md() { echo /dev/md0; }
settle_md() { on client eventually 120 md_clean; }
version_md() { echo "Linux $(on client uname -r), $(mdadm --version 2>&1 | cut -d, -f1)"; }

# ---- DRBD ------------------------------------------------------------------------------------------------

# Each guest has one copy; the client is primary.
drbd_up() { # NAME PORT new|known
  modprobe drbd usermode_helper=disabled
  map_copy "$1" "$2"
  mkdir -p /var/lib/drbd /run/lock /run/drbd
  cat >/etc/drbd.conf <<END
global { usage-count no; }
resource r0 {
  device /dev/drbd0;
  disk /dev/$(disk_of "$1");
  meta-disk internal;
  net { protocol C; }
  on server { address 10.99.0.1:7788; }
  on client { address 10.99.0.2:7788; }
}
END
  [[ $3 == known ]] || drbdadm create-md --force r0
  drbdadm up r0
}
drbd_says() { grep -E "$1" /proc/drbd; }
drbd_whole() { drbd_says 'cs:Connected .*ds:UpToDate/UpToDate'; }
# Both are empty: nothing needs to be copied.
drbd_first() {
  eventually 60 drbd_says 'cs:Connected'
  drbdadm new-current-uuid --clear-bitmap r0
  drbd_primary
}
drbd_primary() {
  eventually 120 drbd_whole
  drbdadm primary r0
}

begin_drbd() {
  on server drbd_up b 1235 new
  on client drbd_up a 1234 new
  on client drbd_first
}
device_of_drbd() { echo /dev/drbd0; }
settle_drbd() { on client eventually 60 drbd_says 'ap:0 .*oos:0'; }
version_drbd() { echo "DRBD $(on client modinfo -F version drbd), drbd-utils $(drbdadm --version 2>/dev/null | sed -n 's/DRBDADM_VERSION=//p')"; }

# ---- Ours --------------------------------------------------------------------------------------------------

ours_up() {
  map_mirror
  eventually 120 all_in_step
}

begin_ours() { on client ours_up; }
device_of_ours() { echo /dev/nbd0; }
settle_ours() { :; }
version_ours() { "$build_dir/bin/rnbd-bridge" --version | head -n 1; }

# note SYSTEM CASE OUTCOME: a line of table.txt.
note() { printf '%-5s | %-60s | %s\n' "$1" "$2" "$3" | tee -a "$work_dir/table.txt"; }
