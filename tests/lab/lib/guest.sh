# shellcheck shell=bash
# What scenarios use inside of a guest, through `on GUEST FUNCTION ...`. Variables that are there:
# $source_dir, $build_dir, $case_dir (shared with the host, and where the function runs; slow: big
# files belong to /tmp).

# shellcheck source=/dev/null
source /lab/settings
case_dir=${case_dir:-/lab} work_dir=/lab
source "$source_dir/tests/tools/cases.sh"
server_program=$build_dir/bin/rnbd-server
plugin=$build_dir/nbdkit-plugin/nbdkit-rnbd-plugin.so

# ---- RDMA ------------------------------------------------------------------------------------------

# rxe_up / rxe_down: soft-RoCE devices rxe0 and rxe1 on both cables.
rxe_up() {
  local cable
  modprobe -a rdma_rxe ib_uverbs rdma_ucm
  for cable in 0 1; do
    [[ -e /sys/class/infiniband/rxe$cable ]] ||
      rdma link add "rxe$cable" type rxe netdev "cable$cable"
  done
}
rxe_down() {
  local device
  for device in /sys/class/infiniband/rxe*; do
    [[ ! -e $device ]] || rdma link delete "${device##*/}"
  done
}

# carrier CABLE 0|1: the state of the link, as this guest sees it.
carrier() { [[ $(<"/sys/class/net/cable$1/carrier") == "$2" ]]; }

# ---- Linux's RNBD ----------------------------------------------------------------------------------

# ramdisk MIB: /dev/ram0
ramdisk() { modprobe brd rd_nr=1 rd_size=$(($1 * 1024)); }

# kernel_server [PARAMETER=VALUE...]: e.g. always_invalidate=N sess_queue_depth=64 port_nr=4321; every
# block device is exported under its path.
kernel_server() {
  local parameter transport=() block=(dev_search_path=/)
  for parameter in "$@"; do
    case $parameter in
      port_nr=* | dev_search_path=*) block+=("$parameter") ;;
      *) transport+=("$parameter") ;;
    esac
  done
  modprobe rtrs_server "${transport[@]}"
  modprobe rnbd_server "${block[@]}"
}

# kernel_map SESSION DEVICE PATH... [OPTION=VALUE...]: PATH as ip:10.99.0.2@ip:10.99.0.1; prints what
# block device it became.
kernel_map() {
  local session=$1 device=$2 text path name
  shift 2
  modprobe rnbd_client
  text="sessname=$session device_path=$device"
  for path in "$@"; do
    case $path in
      *=*) text+=" $path" ;;
      *) text+=" path=$path" ;;
    esac
  done
  echo "$text" >/sys/class/rnbd-client/ctl/map_device
  name=${device//\//!}@$session
  [[ -e /sys/class/rnbd-client/ctl/devices/$name ]] || name=${device//\//!}
  echo "/dev/$(basename "$(readlink -f "/sys/class/rnbd-client/ctl/devices/$name")")"
}

# kernel_unmap /dev/rnbdN [force|normal]
kernel_unmap() { echo "${2:-normal}" >"/sys/block/${1##*/}/rnbd/unmap_device"; }

# path_state SESSION SERVER-ADDRESS: of a path of the kernel's client.
path_state() { cat /sys/class/rtrs-client/"$1"/paths/*"$2"*/state; }
path_is() { [[ $(path_state "$1" "$2") == "$3" ]]; }

# ---- Our programs ----------------------------------------------------------------------------------

# rnbd_server ARGUMENTS...: in the background, ready when this returns; log: rnbd-server.log.
rnbd_server() {
  local ready
  mkfifo /tmp/ready.$$
  "$server_program" --log-level debug --pid-file /run/rnbd-server.pid --ready-fd 4 "$@" \
    4>/tmp/ready.$$ >>"$case_dir/rnbd-server.log" 2>&1 &
  read -r -t 30 ready </tmp/ready.$$ || fail "rnbd-server did not become ready"
  rm /tmp/ready.$$
  echo "$ready"
}

# attach [FILTER-ARGUMENTS... --] URI [PARAMETER...]: nbdkit with our plugin at /run/nbd.sock; log:
# nbdkit.log.
attach() {
  local before=()
  while [[ " $* " == *" -- "* && $1 != -- ]]; do before+=("$1") && shift; done
  [[ $1 != -- ]] || shift
  nbdkit -v -D rnbd.verbose=1 -U /run/nbd.sock -P /run/nbdkit.pid --log=stderr \
    "${before[@]}" -f "$plugin" "$@" >>"$case_dir/nbdkit.log" 2>&1 &
  eventually 30 test -s /run/nbdkit.pid
}
nbd_uri='nbd+unix:///?socket=/run/nbd.sock'

# stop PROGRAM: of the two above, with SIGTERM, and waits for its end.
stop() {
  local process
  process=$(<"/run/$1.pid")
  kill -TERM "$process"
  eventually 20 gone "$process"
  rm -f "/run/$1.pid"
}
gone() { [[ ! -e /proc/$1 ]]; }

# nbd_device: the kernel's NBD client on what `attach` serves: /dev/nbd0.
nbd_device() {
  modprobe nbd
  nbd-client -unix /run/nbd.sock /dev/nbd0 "$@"
}

# ---- Load ------------------------------------------------------------------------------------------

# fio_verify DEVICE [FIO-OPTION...]: random writes of several sizes, then every block's CRC is checked.
fio_verify() {
  local device=$1
  shift
  fio --name=verify --filename="$device" --direct=1 --ioengine=libaio --iodepth=16 \
    --rw=randwrite --bssplit=4k/50:16k/30:128k/20 --size=32M --verify=crc32c --verify_fatal=1 \
    --randseed=7 --output="$case_dir/fio-$HOSTNAME.log" "$@" || {
    cat "$case_dir/fio-$HOSTNAME.log"
    fail "fio on $device"
  }
}

# ---- For lab.sh ------------------------------------------------------------------------------------

# tidy_up: the end of whatever a case left running, mounted, mapped and loaded.
tidy_up() {
  local device job module
  for job in /run/jobs/*; do
    [[ $job == "/run/jobs/$PPID" || ! -e $job ]] || kill -TERM -- "-${job##*/}" 2>/dev/null || true
  done
  while read -r device; do umount "$device"; done < <(awk '/^\/dev\/r?nbd/ { print $2 }' /proc/mounts)
  for device in /sys/block/nbd*/pid; do
    [[ ! -e $device ]] || nbd-client -d "/dev/$(basename "${device%/pid}")"
  done
  for device in /sys/block/rnbd*; do
    [[ ! -e $device ]] || kernel_unmap "$device" force
  done
  end_processes TERM || end_processes KILL
  for module in rnbd_client rtrs_client rnbd_server rtrs_server nbd brd; do
    [[ ! -e /sys/module/$module ]] || modprobe -r "$module" || fail "cannot unload $module"
  done
  rm -rf /tmp/* /run/*.pid /run/*.sock
  rxe_up
  dmesg --read-clear >"$case_dir/$HOSTNAME-dmesg.log"
}

# end_processes SIGNAL: of everything but init and this job; 1 = some are left after 5 s.
end_processes() {
  local file process left command deadline=$((SECONDS + 5))
  while ((SECONDS < deadline)); do
    left=0
    for file in /proc/[0-9]*/cmdline; do
      process=${file//[!0-9]/}
      [[ $process != 1 && $process != "$$" && $process != "$PPID" ]] || continue
      # Threads of the kernel have no command line. No program is started here: that takes long.
      { read -r -d '' command <"$file"; } 2>/dev/null || continue
      echo "still runs: $command"
      if kill "-$1" "$process"; then left=1; fi
    done
    ((left)) || return 0
    sleep 0.2
  done
  return 1
}

# stuck: what the kernel's tasks wait for, on the console.
stuck() {
  dmesg -n 8
  echo w >/proc/sysrq-trigger
  echo l >/proc/sysrq-trigger
  dmesg -n 5
}
