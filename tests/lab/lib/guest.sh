# shellcheck shell=bash
# What scenarios use inside of a guest, through `on GUEST FUNCTION ...`. Variables that are there:
# $source_dir, $build_dir, $case_dir (shared with the host, and where the function runs; slow: big
# files belong to /tmp).
# SPDX-License-Identifier: BSD-3-Clause

# shellcheck source=/dev/null
source /lab/settings
case_dir=${case_dir:-/lab} work_dir=/lab
# What fio_verify writes, and the disk for it: to read all of that takes an emulated guest a while, too.
load_mib=8 disk_mib=32
[[ -z $FULL ]] || load_mib=64 disk_mib=64
source "$source_dir/tests/tools/cases.sh"
source "$source_dir/tests/tools/held_storage.sh"

# ---- RDMA ------------------------------------------------------------------------------------------

# rxe_up / rxe_down: soft-RoCE devices rxe0 and rxe1 on both cables. The kernel's log has what despite_rxe looks for.
rxe_up() {
  local cable
  modprobe -a rdma_rxe ib_uverbs rdma_ucm
  printf '%s\n' 'module rdma_rxe func rxe_reg_fast_mr +p' 'module rdma_rxe format "set rnr nak timer" +p' \
    >/proc/dynamic_debug/control
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

# weather NETEM-OPTION...: on both cables, of what this guest sends; `weather` alone is fine weather.
# Source: tc-netem(8)
weather() {
  local cable
  for cable in 0 1; do
    if (($# > 0)); then
      tc qdisc replace dev "cable$cable" root netem "$@"
      touch /run/weather
    elif [[ -e /run/weather ]]; then
      tc qdisc delete dev "cable$cable" root
    fi
  done
  (($# > 0)) || rm -f /run/weather
}

# mend_checksums: what arrives over IPv4 and TCP gets a right checksum, whatever has become of it.
mend_checksums() {
  local cable
  for cable in 0 1; do
    tc qdisc replace dev "cable$cable" clsact
    tc filter add dev "cable$cable" ingress protocol ip flower ip_proto tcp action csum tcp
  done
  touch /run/mends_checksums
}
check_checksums() {
  local cable
  [[ -e /run/mends_checksums ]] || return 0
  for cable in 0 1; do tc qdisc delete dev "cable$cable" clsact; done
  rm /run/mends_checksums
}

# ---- Linux's RNBD ----------------------------------------------------------------------------------

# ramdisk MIB: /dev/ram0
ramdisk() { modprobe brd rd_nr=1 rd_size=$(($1 * 1024)); }
ramdisk_for_load() { ramdisk "$disk_mib"; }

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

# writes_of /dev/NAME: since it is there.
writes_of() { [[ ! -e /sys/block/${1##*/} ]] || awk '{ print $5 }' "/sys/block/${1##*/}/stat"; }
# writes_reach /dev/NAME COUNT: of those that fio_verify checks.
writes_reach() { [[ -s wiped ]] && (($(writes_of "$1") >= $(<wiped) + $2)); }

# kernel_unmap /dev/rnbdN [force|normal]
kernel_unmap() { echo "${2:-normal}" >"/sys/block/${1##*/}/rnbd/unmap_device"; }

# kernel_remap /dev/rnbdN: its session is back; opened again, if it was not yet.
kernel_remap() { [[ $(<"/sys/block/${1##*/}/rnbd/state") == open ]] || echo 1 >"/sys/block/${1##*/}/rnbd/remap_device"; }

# path_state SESSION SERVER-ADDRESS: of a path of the kernel's client.
path_state() { cat /sys/class/rtrs-client/"$1"/paths/*"$2"*/state; }
# kernel_reconnect SESSION SERVER-ADDRESS: now, and not when it is time.
kernel_reconnect() { echo 1 | tee /sys/class/rtrs-client/"$1"/paths/*"$2"*/reconnect; }
path_is() { [[ $(path_state "$1" "$2") == "$3" ]]; }

# ---- Our programs ----------------------------------------------------------------------------------

# background NAME COMMAND...: with its log in NAME.log and its exit status in /run/NAME.status. The shell
# between stays: nbdkit -f ends with its parent.
background() {
  local name=$1
  shift
  rm -f "/run/$name.status" "/run/$name.pid" /run/nbd.sock
  {
    rc=0
    "$@" >>"$case_dir/$name.log" 2>&1 || rc=$?
    echo "$rc" >"/run/$name.status"
  } &
}

# start_held_storage: an NBD server that can hold a write, at /run/storage.sock; see held_storage.sh.
start_held_storage() {
  held_storage /tmp
  background storage nbdkit -f -U /run/storage.sock -P /run/storage.pid "${held_storage[@]}"
  eventually 30 ready_or_ended storage
}

# start_logged_storage [FUAMODE]: an NBD server with a write cache, at /run/storage.sock, which says in arrived.log what
# reaches it. FUAMODE `pass`: it knows FUA; see nbdkit-fua-filter(1).
start_logged_storage() {
  background storage nbdkit -f -U /run/storage.sock -P /run/storage.pid --filter=fua --filter=log \
    memory 16M logfile="$case_dir/arrived.log" ${1+fuamode="$1"}
  eventually 30 ready_or_ended storage
}

# rnbd_server ARGUMENTS...: ready when this returns.
rnbd_server() {
  local program=$build_dir/bin/rnbd-server
  background rnbd-server "$program" --pid-file /run/rnbd-server.pid "$@"
  eventually 30 ready_or_ended rnbd-server
}

# attach [NBDKIT-ARGUMENT... --] URI [PARAMETER...]: nbdkit with our plugin, as $nbd_uri.
attach() {
  local before=() plugin=$build_dir/nbdkit-plugin/nbdkit-rnbd-plugin.so
  while [[ " $* " == *" -- "* && $1 != -- ]]; do before+=("$1") && shift; done
  [[ $1 != -- ]] || shift
  background nbdkit nbdkit -f -U /run/nbd.sock -P /run/nbdkit.pid -D rnbd.verbose=1 \
    "${before[@]}" "$plugin" "$@" connect-timeout=60s
  eventually 30 ready_or_ended nbdkit
}
# attach_bridge URI [OPTION...]: rnbd-bridge, at the same address.
attach_bridge() {
  background rnbd-bridge "$build_dir/bin/rnbd-bridge" --listen unix:/run/nbd.sock \
    --pid-file /run/rnbd-bridge.pid --connect-timeout 60s "$@"
  eventually 30 ready_or_ended rnbd-bridge
}
# shellcheck disable=SC2034 # for scenarios
nbd_uri='nbd+unix:///?socket=/run/nbd.sock'

ready_or_ended() {
  [[ ! -e /run/$1.status ]] || fail "$1 ended with status $(<"/run/$1.status")"
  [[ -s /run/$1.pid ]]
}

# stop rnbd-server|nbdkit: with SIGTERM, which it must leave with status 0.
stop() {
  kill -TERM "$(<"/run/$1.pid")"
  ended_well "$1"
}

# ended_well NAME: of something in the background.
ended_well() {
  eventually 20 test -s "/run/$1.status"
  [[ $(<"/run/$1.status") == 0 ]] || fail "$1 ended with status $(<"/run/$1.status")"
}

# run_doctest PROGRAM [ARGUMENT...]: doctest itself is content with filters that match nothing.
run_doctest() {
  local status=0
  "$@" >"$case_dir/doctest.out" 2>&1 || status=$?
  cat "$case_dir/doctest.out"
  # Once more at the end, of which a report shows the last lines only.
  [[ $status == 0 ]] || grep -E -B 8 -A 6 'ERROR:' "$case_dir/doctest.out" || true
  grep -Eq 'test cases: +[1-9]' "$case_dir/doctest.out" || fail "no test was run by: $*"
  return "$status"
}

# nbdkit_says PATTERN: in its log.
nbdkit_says() { grep -E "$1" "$case_dir/nbdkit.log"; }

# goes_over PATHS: what nbdkit said last, as "10.99.0.1:1234, 10.99.1.1:1234".
goes_over() { [[ $(nbdkit_says 'I/O goes over' | tail -n 1) == *"I/O goes over $1" ]]; }

# nbd_device [SOCKET [OPTION...]]: the kernel's NBD client on what `attach` or `attach_bridge` serves: /dev/nbd0.
nbd_device() {
  modprobe nbd
  nbd-client -unix "${1:-/run/nbd.sock}" /dev/nbd0 -N '' "${@:2}"
}

# ---- What is held ------------------------------------------------------------------------------------

# held PROGRAM...: what the RDMA devices hold, and each of the programs `background` has started.
held() {
  local program process
  rdma resource show | tr -s ' '
  for program in "$@"; do
    process=$(<"/run/$program.pid")
    find "/proc/$process/fd" -mindepth 1 -printf '%l\n' | sed 's/[0-9]//g' | sort | uniq -c
    # io_uring's come and go
    sort "/proc/$process/task"/*/comm | grep -v '^iou' | sed 's/[0-9]//g' | uniq -c
    grep -E 'VmLck|VmPin' "/proc/$process/status"
  done
}
remember_held() { held "$@" >/tmp/held; }
# holds_no_more PROGRAM...: than when it was remembered.
holds_no_more() { (eventually 20 holds_as_remembered "$@") || diff /tmp/held /tmp/held.now; }
holds_as_remembered() {
  held "$@" >/tmp/held.now
  cmp -s /tmp/held /tmp/held.now
}

# digest FILE: of all of it, with what is quick on an emulated CPU.
digest() { md5sum "$1" | cut -d' ' -f1; }

# ---- Load ------------------------------------------------------------------------------------------

# fio_verify DEVICE [FIO-OPTION...]: random writes of several sizes, then every block is read and its CRC checked. Any time
# limit would end fio before it has read all, so none may be among the options. fio takes what an earlier run has left for
# what it has written itself, so nothing is left: zeroes come first.
fio_verify() {
  local device=$1 size=${load_mib}M option log
  shift
  wake_when_stuck "$device" "$BASHPID" &
  # shellcheck disable=SC2064 # this one
  trap "kill $! 2>/dev/null || true; trap - RETURN" RETURN
  for option; do [[ $option != --size=* ]] || size=${option#*=}; done
  head -c "$size" /dev/zero | dd of="$device" bs=128k oflag=direct iflag=fullblock conv=notrunc,fsync status=none
  writes_of "$device" >"$case_dir/wiped"
  log=$(mktemp "$case_dir/fio-$HOSTNAME.XXXX.json")
  fio --name=verify --filename="$device" --direct=1 --ioengine=libaio --iodepth=16 \
    --rw=randwrite --bssplit=4k/50:16k/30:128k/20 --size="$size" --verify=crc32c --verify_fatal=1 --verify_state_save=0 \
    --randseed="$RANDOM" --output-format=json --output="$log" "$@" || {
    cat "$log"
    fail "fio on $device"
  }
  all_verified "$log" || fail "fio has not read all that it wrote to $device"
}
# wake_when_stuck /dev/NAME PID: while that process lives. Soft-RoCE of 6.1 may forget to end a registration of Linux's
# client until the same queue pair gets more to do, see docs/hacking.md: a request that has stood still for 20 s is helped by
# reads on each CPU. A few times at most: more than that would not be soft-RoCE's mistake.
wake_when_stuck() {
  local disk=/sys/block/${1##*/} completed earlier='' since=$SECONDS woken=0 cpu
  [[ $1 == /dev/rnbd* ]] || return 0
  while sleep 1 && [[ -e /proc/$2 && -e $disk ]] && ((woken < 3)); do
    completed=$(awk '{ print $1, $5, $12, $16 }' "$disk/stat")
    [[ $completed == "$earlier" && $(<"$disk/inflight") =~ [1-9] ]] || earlier=$completed since=$SECONDS
    ((SECONDS - since >= 20)) || continue
    echo "soft-RoCE has forgotten a request after reads, writes, discards and flushes: $completed"
    for ((cpu = 0; cpu < $(nproc); cpu++)); do
      # Many at once: Linux prefers the path that has less under way.
      timeout 10 fio --name=wake --filename="$1" --direct=1 --ioengine=libaio --iodepth=16 --rw=read --bs=4k \
        --number_ios=64 --cpus_allowed="$cpu" >/dev/null 2>&1 || true
    done
    woken=$((woken + 1)) since=$SECONDS
  done
}
# all_verified FILE: as much was read as was written, and that was something.
all_verified() {
  python3 -c '
import json, sys
text = open(sys.argv[1]).read()
job = json.loads(text[text.index("{"):])["jobs"][0]
written, read = job["write"]["io_bytes"], job["read"]["io_bytes"]
print(f"fio wrote {written} bytes and verified {read}")
sys.exit(not 0 < written <= read)' "$1"
}
# verify_until FILE DEVICE [FIO-OPTION...]: again and again, until the file is there; the last round is ended, too.
verify_until() {
  local end=$1
  shift
  until [[ -e $end ]]; do fio_verify "$@"; done
}

# write_block DEVICE PLACE LETTER / block_is DEVICE PLACE LETTER: 64 KiB of it, past the cache. Or of a
# FILE, to look at it.
block_of() { head -c 64k /dev/zero | tr '\0' "$1"; }
write_block() {
  block_of "$3" | dd of="$1" bs=64k seek="$2" oflag=direct iflag=fullblock conv=notrunc status=none
}
block_is() {
  local flags=()
  [[ ! -b $1 ]] || flags=(iflag=direct)
  cmp <(dd if="$1" bs=64k skip="$2" count=1 status=none "${flags[@]}") <(block_of "$3")
}

# sent CABLE: bytes, ever.
sent() { cat "/sys/class/net/cable$1/statistics/tx_bytes"; }
sent_more() { (($(sent "$1") > $2)); }

# ---- For lab.sh ------------------------------------------------------------------------------------

# tidy_up: the end of whatever a case left running, mounted, mapped and loaded.
tidy_up() {
  local device job module
  trap keep_dmesg EXIT
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
  end_all
  nothing_crashed
  for module in rnbd_client rtrs_client rnbd_server rtrs_server nbd brd; do
    [[ ! -e /sys/module/$module ]] || modprobe -r "$module" || fail "cannot unload $module"
  done
  # Not the clone, should it be there: that is another file system.
  find /tmp -xdev -mindepth 1 -delete 2>/dev/null || true
  rm -rf /run/*.pid /run/*.sock /run/*.status /run/rnbd
  weather
  check_checksums
  rxe_up
}
keep_dmesg() { dmesg --read-clear >>"$case_dir/$HOSTNAME-dmesg.log"; }

# nothing_crashed: of what ran in the background. The kernel says nothing of programs that abort.
nothing_crashed() {
  local file crashed=()
  for file in /run/*.status; do
    [[ -e $file ]] || continue
    case $(<"$file") in
      132 | 134 | 135 | 136 | 139) crashed+=("$(basename "$file" .status)") ;; # SIGILL, ABRT, BUS, FPE, SEGV
    esac
  done
  ((${#crashed[@]} == 0)) || fail "crashed: ${crashed[*]}"
}

# end_all: of everything but init and this job. None of our programs may need SIGKILL; they have as long as `stop` gives them.
end_all() {
  local stubborn
  end_processes TERM 5 && return
  [[ -z $(our_programs) ]] || end_processes TERM 35 || true
  stubborn=$(our_programs)
  [[ -z $stubborn ]] || echo "FAILED: killed: $stubborn did not leave on SIGTERM"
  end_processes KILL 5
  [[ -z $stubborn ]]
}
# our_programs: those that run. Of nbdkits that have our plugin.
our_programs() {
  local file words
  for file in /proc/[0-9]*/cmdline; do
    { mapfile -d '' words <"$file"; } 2>/dev/null || continue
    case ${words[*]} in
      */rnbd-server\ * | */rnbd-bridge\ *) echo "${words[0]##*/}" ;;
      nbdkit\ *nbdkit-rnbd-plugin.so*) echo nbdkit ;;
    esac
  done | sort -u | paste -s -d ' '
}

# end_processes SIGNAL SECONDS: of everything but init and this job; 1 = some are left by then.
end_processes() {
  local file process left command deadline=$((SECONDS + $2))
  while ((SECONDS < deadline)); do
    left=0
    for file in /proc/[0-9]*/cmdline; do
      process=${file//[!0-9]/}
      [[ $process != 1 && $process != "$$" && $process != "$PPID" ]] || continue
      # Threads of the kernel have no command line. No program is started here: that takes long.
      { read -r -d '' command <"$file"; } 2>/dev/null || continue
      echo "still runs: $command"
      if kill "-$1" "$process"; then left=1; fi
      kill -CONT "$process" 2>/dev/null || true # a case may have stopped it
    done
    ((left)) || return 0
    sleep 0.2
  done
  return 1
}

# stuck: what the kernel's tasks wait for, on the console, when a guest could not be tidied up.
stuck() {
  keep_dmesg
  dmesg -n 8
  echo w >/proc/sysrq-trigger
  dmesg -n 5
  nothing_crashed
}
