# shellcheck shell=bash
# What a scenario uses on the host: guests, what runs in them, and their cables. See docs/hacking.md,
# The lab. Started by tests/lab/run, which sets $source_dir, $build_dir, $kernel_dir and $work_dir.
# SPDX-License-Identifier: BSD-3-Clause

set -euo pipefail
shopt -s inherit_errexit
source "$source_dir/tests/tools/cases.sh"
# shellcheck source-path=SCRIPTDIR
source "$source_dir/tests/lab/lib/steps.sh"

lab_dir=$source_dir/tests/lab
guests=()
limit=180     # seconds, of `on`
memory=1536  # MiB, of a guest
cpus=1       # of a guest: two guests have the CPUs of a small machine then
instructions=  # not empty: a guest's clock counts instructions, a nanosecond each

# What a kernel says when something is wrong with it, or with a program.
complaints='WARNING: |BUG: |BUG at|Oops|Kernel panic|general protection|possible [a-z ]*deadlock'
complaints+='|INFO: task .* blocked|self-detected stall|detected stalls|Call Trace:|refcount_t:'
# This one is soft-RoCE's, see despite_rxe.
complaints+='|rxe_reg_fast_mr: mr->lkey = .* not free'
complaints+='|list_(add|del) corruption|unregister_netdevice: waiting|Out of memory'
# What it says of a program that crashes; that is in its log only.
crashes='segfault at|traps: '

# ---- Guests ----------------------------------------------------------------------------------------

# boot GUEST...: one or two guests, with a cable between cable0 and cable0 and one between cable1 and
# cable1. The first has the addresses 10.99.0.1 and 10.99.1.1, the second .2 (and fd99::0:1 ...).
boot() {
  local guest
  printf '%s=%q\n' source_dir "$source_dir" build_dir "$build_dir" kernel_dir "$kernel_dir" \
    FULL "${FULL:-}" >"$work_dir/settings"
  cp "$lab_dir/lib/init" "$work_dir/init"
  for guest in "$@"; do
    guests+=("$guest")
    start_qemu "$guest" "${#guests[@]}"
  done
  for guest in "$@"; do
    wait_up "$guest" && continue
    echo "FAIL  $guest did not boot"
    show_log "$work_dir/$guest/qemu.log"
    show_log "$work_dir/$guest/console.log"
    failed=$((failed + 1))
    finish
  done
}

start_qemu() {
  local guest=$1 number=$2 dir=$work_dir/$1 cable network=() clock=(-accel "$accelerator" -cpu max)
  # A string instruction counts as one, whatever it copies: without them a copy takes its time.
  [[ -z $instructions ]] ||
    clock=(-accel tcg,thread=single -icount shift=0,sleep=off -cpu max,-erms,-fsrm)
  mkdir -p "$dir/jobs"
  mkfifo "$dir/agent.in" "$dir/agent.out"
  truncate -s 64M "$dir/disk.img"
  for cable in 0 1; do
    network+=(-netdev "socket,id=cable$cable,fd=$((number * 10 + cable))"
      -device "virtio-net-pci,netdev=cable$cable,mac=52:54:00:99:0$cable:0$number,romfile=")
  done
  # The guest goes when this shell goes, however that ends. QEMU 7.2 forgets about its HPET in a reset:
  # the guest's next boot would stand still for as long as it had been up. no_timer_check: while the host
  # is busy the kernel misses the few ticks that it waits for at boot, and panics.
  setpriv --pdeathsig KILL qemu-system-x86_64 "${clock[@]}" -machine pc,hpet=off -smp "$cpus" \
    -m "$memory" -nodefaults -display none -no-user-config -serial "file:$dir/console.log" \
    -qmp "unix:$dir/qmp,server=on,wait=off" -device virtio-rng-pci \
    -chardev "pipe,id=agent,path=$dir/agent" -device virtio-serial-pci \
    -device virtserialport,chardev=agent,name=lab \
    -drive "file=$dir/disk.img,format=raw,if=none,id=disk" -device "virtio-blk-pci,drive=disk,serial=lab$number" \
    -virtfs local,path=/,mount_tag=hostroot,security_model=none,readonly=on,multidevs=remap \
    -virtfs "local,path=$work_dir,mount_tag=lab,security_model=none" "${network[@]}" \
    -kernel "$kernel_dir/vmlinuz" -initrd "$kernel_dir/initramfs.gz" \
    -append "console=ttyS0 loglevel=5 net.ifnames=0 panic_on_oops=1 rcupdate.rcu_cpu_stall_timeout=120 nosoftlockup no_timer_check \
lab.guest=$guest lab.number=$number" >"$dir/qemu.log" 2>&1 </dev/null &
  echo $! >"$dir/pid"
}

runs() { kill -0 "$(<"$work_dir/$1/pid")" 2>/dev/null; }
# since_reset GUEST: what its console has said.
since_reset() { tail -c "+$(($(cat "$work_dir/$1/reset" 2>/dev/null || echo 0) + 1))" "$work_dir/$1/console.log"; }
panicked() { since_reset "$1" 2>/dev/null | grep 'Kernel panic' >/dev/null; }

# wait_up GUEST: until it takes jobs; some 10 s, but the machine may be busy.
wait_up() {
  local deadline=$((SECONDS + 180))
  until [[ -e $work_dir/$1/up ]]; do
    ((SECONDS < deadline)) && runs "$1" && ! panicked "$1" || return 1
    sleep 0.1
  done
}

# qmp GUEST COMMAND [JSON]
qmp() { "$lab_dir/lib/qmp" "$work_dir/$1/qmp" "${@:2}" >/dev/null; }

# pull GUEST CABLE / plug GUEST CABLE: that end of cable 0 or 1.
pull() { qmp "$1" set_link "{\"name\": \"cable$2\", \"up\": false}"; }
plug() { qmp "$1" set_link "{\"name\": \"cable$2\", \"up\": true}"; }
# flap GUEST SECONDS: one of the two is down for 200 ms, then the other; at the end both are up.
flap() { "$lab_dir/lib/qmp" "$work_dir/$1/qmp" flap "$2" 0.2; }

# pause GUEST / resume GUEST: all of it stands still.
pause() { qmp "$1" stop; }
resume() { qmp "$1" cont; }

# reset GUEST: as if somebody pressed the button; returns when it is up again.
reset() {
  rm -f "$work_dir/$1/up"
  stat -c %s "$work_dir/$1/console.log" >"$work_dir/$1/reset"
  qmp "$1" system_reset
  wait_up "$1" || fail "$1 did not come up again"
}

# cut_power GUEST / power_on GUEST: what it had not written to its disk, /dev/vda, is lost, and nobody is told.
# It stands still until its memory is cleared: for its peers and its disk that is the same.
cut_power() { pause "$1" && touch "$work_dir/$1/off"; }
power_on() {
  rm "$work_dir/$1/off"
  qmp "$1" system_reset
  resume "$1"
  reset "$1"
}

# it_full TITLE FUNCTION [ARGUMENTS...]: a case of lab-full only.
it_full() { [[ -z ${FULL:-} ]] || it "$@"; }

# ---- What runs in them -----------------------------------------------------------------------------

# on GUEST COMMAND...: runs it in a guest, in the case's directory, and has its output and status. A
# command may be a function of the scenario or of guest.sh; variables of the host are not there.
# `on client f & job=$!` ... `wait $job` for something in the background. `limit=300 on ...` when it
# may take longer than 180 s.
on() {
  local guest=$1 job rc deadline=$((SECONDS + limit))
  shift
  job=$(mktemp "$work_dir/$guest/jobs/XXXXXX")
  {
    echo "case_dir=/lab${case_dir#"$work_dir"} slow=2"
    # shellcheck disable=SC2016 # for the guest
    echo 'cd "$case_dir"'
    scenario_functions
    printf '%q ' "$@"
  } >"$job"
  echo "${job##*/}" >"$work_dir/$guest/agent.in"
  until [[ -s $job.rc ]]; do
    ((SECONDS < deadline)) && runs "$guest" && ! panicked "$guest" || lost "$guest" "$job" "$@"
    sleep 0.05
  done
  touch "$job.seen"
  cat "$job.out"
  cat "$job.err" >&2
  rc=$(<"$job.rc")
  return "$rc"
}

# lost GUEST JOB COMMAND...: says why there will be no answer. exit, and not return, because a command that
# has no answer must not count as one that failed.
lost() {
  local guest=$1 job=$2
  shift 2
  cat "$job.out" "$job.err" 2>/dev/null || true
  if ! runs "$guest" || panicked "$guest"; then
    echo "FAILED: the guest $guest is dead, it was to run: $*" >&2
  else
    echo "FAILED: no answer from $guest within $limit s: $*" >&2
    touch "$work_dir/$guest/hangs"
  fi
  exit 124
}

# The functions that the scenario defined, as text.
scenario_functions() {
  local name
  while read -r name; do
    [[ -n ${own_functions[$name]-} ]] || declare -f "$name"
  done < <(compgen -A function)
}

# ---- Defects of others ---------------------------------------------------------------------------------

# again_because: why a case that has failed is run again, see cases.sh.
again_because() { qemu_has_failed || rxe_has_failed || rxe_has_leaked; }

# QEMU 7.2 has lost its emulated CPU's flags while the host was busy: the kernel panicked, and said that it had
# flags which no CPU has. Source: the bits 24 to 31 of EFLAGS are always 0.
qemu_has_failed() {
  [[ $accelerator == tcg* ]] && grep -hsE 'EFLAGS: (0[1-9a-f]|[1-9a-f].)[0-9a-f]{6}' "$case_dir"/*.console | head -n 1 &&
    echo "(no CPU has such flags: QEMU has lost them)"
}

# despite_rxe FUNCTION [ARGUMENTS...]: for cases in which Linux registers memory for each request, as its server does with
# always_invalidate, and its client. Soft-RoCE does not survive a retransmission there, see docs/operations.md; when a
# kernel says that this has happened, the case is run again.
despite_rxe() {
  touch "$case_dir/despite_rxe"
  "$@"
}

# 6.12 says it in its log only, see rxe_up. Not "REG MR failed": every connection ends with that that has replies
# under way, whoever ended it.
rxe_defect='rxe_reg_fast_mr: +mr->lkey = .* not free'
# What follows from it: a connection that sends nothing more, and tasks that hang.
rxe_follows='INFO: task .* blocked|Call Trace:'
# What does not, and a retransmission that is the receiver's fault.
wrong='FAILED: crashed: |verify(: bad| failed)|io_u error|FAILED: the client reads|protocol violation'
not_rxe="$wrong|FAILED: killed: |set rnr nak timer"

rxe_has_failed() {
  local kernels=("$case_dir"/*.console "$case_dir"/*-dmesg.log)
  [[ -e $case_dir/despite_rxe ]] || return
  ! grep -hasE "$complaints|$crashes" "${kernels[@]}" | grep -vE "$rxe_defect|$rxe_follows" >/dev/null || return
  ! grep -qasE "$not_rxe" "$case_dir"/*.log || return
  grep -hasE "$rxe_defect" "${kernels[@]}" | sed -n '1s/^/soft-RoCE has failed: /p'
}

# Of a queue pair that is destroyed. Soft-RoCE waits for the last packet of it to go, more than a minute, in which whoever
# destroys it stands still and cannot be killed; 6.1 has once waited in vain while a cable was pulled.
rxe_leak='rxe/rxe_pool.c:[0-9]+ __rxe_cleanup'

rxe_has_leaked() {
  local kernels=("$case_dir"/*.console "$case_dir"/*-dmesg.log)
  [[ $kernel_dir == *-6.1 ]] || return
  ! grep -hasE "$complaints|$crashes" "${kernels[@]}" | grep -vE "$rxe_leak|$rxe_follows" >/dev/null || return
  ! grep -qasE "$wrong" "$case_dir"/*.log || return
  grep -hasE "$rxe_leak" "${kernels[@]}" | sed -n '1s/^/soft-RoCE has failed: /p' | grep .
}

# ---- The end of a case -------------------------------------------------------------------------------

# Leaves the guests as they were when they came up, and looks at what their kernels said.
close_case() {
  local rc=0 guest limit=180
  declare -A tidying
  # shellcheck disable=SC2046 # one word per job
  kill $(jobs -p) 2>/dev/null
  for guest in "${guests[@]}"; do unseen_output "$guest"; done
  run_at_end
  for guest in "${guests[@]}"; do
    tidy "$guest" >"$case_dir/tidy-$guest.txt" 2>&1 & tidying[$guest]=$!
  done
  for guest in "${guests[@]}"; do
    wait "${tidying[$guest]}" && continue
    cat "$case_dir/tidy-$guest.txt"
    echo "FAILED: $guest could not be tidied up; it starts anew"
    rc=1
    (on "$guest" stuck) || true
    (reset "$guest") || return 1
    rm -f "$work_dir/$guest/hangs"
  done
  for guest in "${guests[@]}"; do no_complaint "$guest" || rc=1; done
  return "$rc"
}

tidy() { [[ ! -e $work_dir/$1/hangs ]] && plug_all "$1" && on "$1" tidy_up; }

# unseen_output GUEST: what jobs said that still run.
unseen_output() {
  local job
  for job in "$work_dir/$1"/jobs/??????; do
    [[ -e $job && ! -e $job.seen ]] || continue
    touch "$job.seen"
    tail -n 40 "$job.out" "$job.err"
  done
}

plug_all() {
  [[ ! -e $work_dir/$1/off ]] || power_on "$1"
  resume "$1" && plug "$1" 0 && plug "$1" 1
}

# no_complaint GUEST: nothing was found in what is new on the console, nor in the log that tidy_up has kept.
no_complaint() {
  local seen=$work_dir/$1/seen from=0 new=$case_dir/$1.console
  [[ ! -e $seen ]] || from=$(<"$seen")
  tail -c "+$((from + 1))" "$work_dir/$1/console.log" >"$new"
  echo $((from + $(stat -c %s "$new"))) >"$seen"
  grep -aE "$complaints" "$new" || grep -asE "$crashes" "$case_dir/$1-dmesg.log" || return 0
  echo "FAILED: $1's kernel complained, see $case_dir"
  return 1
}

# dmesg has more than the console, but only a guest that lives can tell it.
more_logs() {
  local guest
  for guest in "${guests[@]}"; do
    [[ -s $case_dir/$guest-dmesg.log ]] || show_log "$case_dir/$guest.console"
  done
}

declare -A own_functions
while read -r name; do own_functions[$name]=1; done < <(compgen -A function)
