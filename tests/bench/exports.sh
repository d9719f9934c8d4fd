# shellcheck shell=bash
# Starts and reloads a server with more files than an ordinary machine gives descriptors for, in a guest whose clock
# counts instructions.
#   tests/lab/run tests/bench/exports.sh --kernel 6.12 --verbose
# COUNTS (5000 20000) may be set. No test: it fails only when something does not work. CPU time of such a guest is for
# comparing counts with each other, and with 5,000 on the machine itself.
# SPDX-License-Identifier: BSD-3-Clause

measure() { # COUNT...
  local count
  cat "$build_dir"/bin/rnbd-{server,ctl} >/dev/null # while the guest waits for the host's files its clock runs on
  for count in "$@"; do
    # 1: a goal is missed, which is for real machines.
    "$source_dir/tests/bench/scale" --build "$build_dir" --parts exports --exports "$count" || (($? == 1))
  done
}

instructions=1 memory=3072 limit=3000
boot host
# shellcheck disable=SC2086 # one word each
it "servers with many files start and reload" on host measure ${COUNTS:-5000 20000}
finish
