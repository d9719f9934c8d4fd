# shellcheck shell=bash
# Measures large calls of librtrs in registered memory beside ib_write_bw, between two guests with soft-RoCE.
#   tests/lab/run tests/bench/lab-library.sh --kernel 6.12 --verbose
# ib_write_bw is in the package perftest. No test: it fails only when something does not work. ROUNDS (5) and MIB (1024,
# of one call) may be set. Emulated guests are slow: only the ratios of one run say something.
# SPDX-License-Identifier: BSD-3-Clause

rounds=${ROUNDS:-5}
mib=${MIB:-1024}
piece=262144 # bytes of a message, as librtrs cuts large data by default
port=18515

# ---- In the server ------------------------------------------------------------------------------------

serve_library() {
  ulimit -l unlimited
  "$build_dir/bin/bench-library" serve rtrs://10.99.0.1:2001 "$1" >"$case_dir/library.log" 2>&1 &
  eventually 300 grep -q '^listening' "$case_dir/library.log"
}
stop_library() { pkill -TERM -x bench-library; }
# Again when it breaks, as soft-RoCE's connections do while the machine is busy: its client tries again, too.
serve_perftest() {
  local try
  for ((try = 0; try < 5; try++)); do
    ! ib_write_bw -R -d rxe0 -s "$1" -n "$2" -F -p "$3" >"$case_dir/perftest-server.log" 2>&1 || break
  done &
}

# ---- In the client ------------------------------------------------------------------------------------

# Each prints MB/s.
ask_perftest() {
  ulimit -l unlimited
  local tries=0
  until ib_write_bw -R -d rxe0 -s "$1" -n "$2" -F -p "$3" 10.99.0.1 >/tmp/perftest.log 2>&1; do
    tries=$((tries + 1))
    ((tries < 20)) || { cat /tmp/perftest.log && return 1; }
    sleep 0.5
  done
  # Columns: bytes, iterations, peak, average in MiB/s, messages/s.
  awk -v size="$1" '$1 == size { printf "%.1f\n", $4 * 1.048576 }' /tmp/perftest.log
}
ask_library() {
  ulimit -l unlimited
  "$build_dir/bin/bench-library" rtrs://10.99.0.1:2001 "$1" 1 "$2" | sed 's/.*"mb_per_s":\([0-9.]*\).*/\1/'
}

# ---- The run ------------------------------------------------------------------------------------------

median() { sort -n "$1" | awk '{ line[NR] = $1 } END { print line[int((NR + 1) / 2)] }'; }

measure() {
  on server rxe_up
  on client rxe_up
  on server serve_library "$mib"
  local round way messages=$((mib * 1048576 / piece))
  for ((round = 1; round <= rounds; round++)); do
    on server serve_perftest "$piece" "$messages" $((port + round))
    on client ask_perftest "$piece" "$messages" $((port + round)) | tail -1 >>"$work_dir/ib_write_bw"
    for way in put get; do on client ask_library "$way" "$mib" | tail -1 >>"$work_dir/$way"; done
  done
  on server stop_library
  for way in ib_write_bw put get; do
    echo "$way: $(median "$work_dir/$way") MB/s, of $(sort -n "$work_dir/$way" | xargs)"
  done
}

# What the server sends, what comes, and as much again for all else.
memory=$((1536 + 3 * mib))
limit=1200
boot server client
it "everything that is compared works" measure
finish
