# shellcheck shell=bash
# Measures Linux's RNBD, NVMe over RDMA and TCP, and ours, side by side between two guests.
#   tests/lab/run tests/bench/lab.sh --kernel 6.12 --verbose
# ours-native is rnbd-bridge with the kernel's NBD client; the other ones of ours are nbdkit with fio as its client.
# No test: it fails only when something does not work. ROUNDS (3), SECONDS_EACH (4) and SIDES (all) may be set.
# Emulated guests are slow: only the ratios of one run say something.
# SPDX-License-Identifier: BSD-3-Clause

rounds=${ROUNDS:-3}
runtime=${SECONDS_EACH:-4}
read -ra sides <<<"${SIDES:-kernel-rnbd nvme-rdma nvme-tcp ours-to-kernel ours-to-ours ours-native ours-invalidating}"
loads=(4k-1 4k-32 128k-4)

# ---- In the server ------------------------------------------------------------------------------------

nvme_export() {
  local transport=$1 port=$2 root=/sys/kernel/config/nvmet
  mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config
  modprobe -a nvmet "nvmet-$transport"
  if [[ ! -e $root/subsystems/bench ]]; then
    mkdir "$root/subsystems/bench"
    echo 1 >"$root/subsystems/bench/attr_allow_any_host"
    mkdir "$root/subsystems/bench/namespaces/1"
    echo /dev/ram0 >"$root/subsystems/bench/namespaces/1/device_path"
    echo 1 >"$root/subsystems/bench/namespaces/1/enable"
  fi
  mkdir "$root/ports/$port"
  echo "$transport" >"$root/ports/$port/addr_trtype"
  echo ipv4 >"$root/ports/$port/addr_adrfam"
  echo 10.99.0.1 >"$root/ports/$port/addr_traddr"
  echo $((4420 + port)) >"$root/ports/$port/addr_trsvcid"
  ln -s "$root/subsystems/bench" "$root/ports/$port/subsystems/bench"
}

serve_all() {
  ramdisk 64
  kernel_server always_invalidate=Y
  nvme_export rdma 1
  nvme_export tcp 2
  "$build_dir/bin/rnbd-server" --listen rdma:10.99.0.1:2001 --export disk0=/dev/ram0,direct,ro \
    >>"$case_dir/ours.log" 2>&1 &
  "$build_dir/bin/rnbd-server" --listen rdma:10.99.0.1:2002 --always-invalidate \
    --export disk0=/dev/ram0,direct,ro >>"$case_dir/invalidating.log" 2>&1 &
  eventually 20 listen_on 2002
}
# What is still exported would keep the RAM disk in use.
nvme_unexport() {
  local root=/sys/kernel/config/nvmet
  rm -f "$root"/ports/*/subsystems/bench
  rmdir "$root"/ports/*
  echo 0 >"$root/subsystems/bench/namespaces/1/enable"
  rmdir "$root/subsystems/bench/namespaces/1" "$root/subsystems/bench"
  modprobe -r nvmet-rdma nvmet-tcp nvmet
}
listen_on() { rdma resource show cm_id | grep -q "src-addr 10.99.0.1:$1 .*LISTEN\|LISTEN.*:$1"; }

# ---- In the client ------------------------------------------------------------------------------------

nvme_connect() {
  modprobe "nvme-$1"
  echo "transport=$1,traddr=10.99.0.1,trsvcid=$2,nqn=bench" >/dev/nvme-fabrics
  eventually 20 compgen -G "/sys/class/nvme-subsystem/nvme-subsys*/nvme*n1" >/dev/null
  basename "$(compgen -G '/sys/block/nvme*n1' | tail -1)"
}

# attach_side SIDE: prints where fio finds it.
attach_side() {
  case $1 in
    kernel-rnbd) kernel_map bench dev/ram0 ip:10.99.0.2@ip:10.99.0.1 ;;
    nvme-rdma) echo "/dev/$(nvme_connect rdma 4421)" ;;
    nvme-tcp) echo "/dev/$(nvme_connect tcp 4422)" ;;
    ours-to-kernel) plugin_for rnbd://10.99.0.1/dev/ram0 ;;
    ours-to-ours) plugin_for rnbd://10.99.0.1:2001/disk0 ;;
    ours-native) bridge_for rnbd://10.99.0.1:2001/disk0 ;;
    ours-invalidating) plugin_for rnbd://10.99.0.1:2002/disk0 ;;
  esac
}
bridge_for() {
  attach_bridge "$1"
  nbd_device >&2
  echo /dev/nbd0
}
plugin_for() {
  attach -t 64 -- "$1"
  echo "$nbd_uri"
}
detach_side() {
  case $1 in
    kernel-rnbd) kernel_unmap "$2" ;;
    nvme-*) for file in /sys/class/nvme/*/delete_controller; do echo 1 >"$file"; done ;;
    ours-native) nbd-client -d /dev/nbd0 && stop rnbd-bridge ;;
    *) stop nbdkit && rm -f /run/nbd.sock ;;
  esac
}

# load WHERE SIZE-DEPTH SECONDS: "IOPS p50-us requests"
load() {
  local engine=(--ioengine=libaio --direct=1 --filename="$1")
  [[ $1 == /dev/* ]] || engine=(--ioengine=nbd --uri="$1")
  local direction=randread
  [[ $2 != 128k-* ]] || direction="read"
  fio --name=bench "${engine[@]}" --rw="$direction" --bs="${2%-*}" --iodepth="${2#*-}" --size=64M \
    --time_based --runtime="$3" --output-format=json --output=/tmp/fio.json >&2
  python3 -c '
import json
read = json.load(open("/tmp/fio.json"))["jobs"][0]["read"]
print(round(read["iops"]), round(read["clat_ns"]["percentile"]["50.000000"] / 1000), read["total_ios"])'
}

# counted: since its boot, what a guest has worked (ticks of 10 ms), its context switches, and its packets.
counted() {
  awk '/^cpu / { print $2 + $3 + $4 + $7 + $8 } /^ctxt / { print $2 }' /proc/stat
  cat /sys/class/net/cable0/statistics/tx_packets
}

# ---- The run ------------------------------------------------------------------------------------------

# both_counted: the sum of both guests.
both_counted() { paste <(on client counted) <(on server counted) | awk '{ print $1 + $2 }' | xargs; }

# measure_load SIDE WHERE LOAD: a line of figures. Counts are per request.
measure_load() {
  local before after iops latency requests
  before=$(both_counted)
  read -r iops latency requests < <(on client load "$2" "$3" "$runtime" | tail -1)
  after=$(both_counted)
  awk -v requests="$requests" -v line="$1 $3 $iops $latency" -v before="$before" -v after="$after" 'BEGIN {
    split(before, b, " "); split(after, a, " ")
    print line, (a[1] - b[1]) * 10000 / requests, (a[2] - b[2]) / requests, (a[3] - b[3]) / requests
  }' >>"$work_dir/figures"
}

measure() {
  local side load where round
  on server serve_all
  for ((round = 1; round <= rounds; round++)); do
    for side in "${sides[@]}"; do
      where=$(on client attach_side "$side" | tail -1)
      for load in "${loads[@]}"; do measure_load "$side" "$where" "$load"; done
      on client detach_side "$side" "$where"
    done
  done
  on server nvme_unexport
  python3 "$source_dir/tests/bench/lab-table" "$work_dir/figures"
}

limit=1200
boot server client
it "everything that is compared works" measure
finish
