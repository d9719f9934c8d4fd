# shellcheck shell=bash
# Measures our chains and nbdkit's in a guest whose clock counts instructions. tests/bench/icount starts it.
# SPDX-License-Identifier: BSD-3-Clause

# icount_chains and icount_workloads: of tests/bench/run, separated by commas.
chains=${icount_chains:-base,native,plugin,native-tls,native:--digest=none}
workloads=${icount_workloads:-read-1,write-1,read-32,write-32,read-128k,write-128k,fua-1,fua-32}

# A real file system, and no disk whose time would be the host's.
disk_of_memory() {
  ramdisk 192
  mkfs.ext4 -q -E lazy_itable_init=0,lazy_journal_init=0 /dev/ram0
  mkdir -p /tmp/disk
  mount /dev/ram0 /tmp/disk
}

measure_chains() {
  disk_of_memory
  local chain variants=() plain=()
  for chain in ${1//,/ }; do
    if [[ $chain == *:* ]]; then variants+=(--variant "$chain"); else plain+=("$chain"); fi
  done
  "$source_dir/tests/bench/run" --build "$build_dir" --chains "$(IFS=, && echo "${plain[*]}")" "${variants[@]}" \
    --workloads "$2" --parts pinned --repetitions 1 --seconds 0.15 --warm-up 0.05 --size 96 --file /tmp/disk/file \
    --rdma 10.99.0.1 --json /lab/figures.json --output /lab/tables.md
  umount /tmp/disk
}

instructions=1 memory=3072 limit=3000
boot client
it "each chain is measured" on client measure_chains "$chains" "$workloads"
finish
