#!/bin/bash
# librtrs and librnbd as a stranger has them: installed, found with pkg-config, used by the programs in examples/.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"
source "${BASH_SOURCE[0]%/*}/load.sh"

prefix=$work_dir/prefix
programs=$work_dir/programs

# With a sanitizer the programs have it, too, and Python loads it first. What Python itself never frees is
# not the library's.
python=/usr/bin/python3 flags=()
if [[ -n $sanitizer ]]; then
  flags=(-g "-fsanitize=$sanitizer")
  python=$work_dir/python3
  printf '#!/bin/sh\nLD_PRELOAD="%s" ASAN_OPTIONS=detect_leaks=0 exec /usr/bin/python3 "$@"\n' \
    "${RNBD_PRELOAD:?}" >"$python"
  chmod +x "$python"
fi

# Once for all cases.
install_library() {
  local component
  for component in librtrs0 librtrs-dev librnbd0 librnbd-dev python3-rtrs; do
    cmake --install "$build_dir" --prefix "$prefix" --component "$component"
  done >"$work_dir/install.txt"
  libdir=$(dirname "$(find "$prefix" -name librtrs.so.0)")
  mkdir "$programs"
  PKG_CONFIG_PATH=$libdir/pkgconfig make -C "$source_dir/examples" OUT="$programs" -j2 \
    CXX="c++ ${flags[*]}" CC="cc ${flags[*]}" \
    >"$work_dir/make.txt" 2>&1 || { cat "$work_dir/make.txt" && exit 1; }
  export LD_LIBRARY_PATH=$libdir
  PYTHONPATH=$(dirname "$(find "$prefix" -name rtrs -type d -path '*python3*')")
  export PYTHONPATH
}
install_library

# serve NAME COMMAND...: a server of the library; sets $port and $server_uri.
serve() {
  local name=$1
  shift
  spawn "$name" "$@"
  wait_for_line "$case_dir/$name.out" '^listening on port'
  port=$(sed -n 's/^listening on port //p' "$case_dir/$name.out")
  server_uri=rtrs+tcp://127.0.0.1:$port
}
anywhere=rtrs+tcp://127.0.0.1:0

exports() {
  [[ -z $sanitizer ]] || skip "a sanitizer adds to what the library exports"
  requires nm
  nm -D --defined-only "$libdir/librtrs.so.0" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' |
    sort >exported.txt
  cat exported.txt
  (($(wc -l <exported.txt) <= 60)) || fail "more than 60 symbols are exported"
  grep -oE '\brtrs_[a-z_]+\(' "$prefix/include/rtrs.h" | tr -d '(' | sort -u >mentioned.txt
  comm -23 exported.txt mentioned.txt | tee undeclared.txt
  [[ ! -s undeclared.txt ]] || fail "rtrs.h does not declare what is exported"
}
it "the library exports what rtrs.h declares, 60 symbols at most, and nothing foreign" exports

plain_c() {
  printf '#include <rtrs.h>\nint main(void) { return rtrs_version()[0] == 0; }\n' >plain.c
  # shellcheck disable=SC2046
  cc "${flags[@]}" -std=c99 -Wall -Wextra -Wpedantic -Werror plain.c -o plain \
    $(PKG_CONFIG_PATH=$libdir/pkgconfig pkg-config --cflags --libs rtrs)
  ./plain
}
it "rtrs.h is C99, and pkg-config is all that one needs" plain_c

disk() {
  truncate -s 1M image
  start_server --export "disk0=$PWD/image"
  limited "$programs/disk-disk.c" "rnbd+tcp://$address/disk0"
  cmp <(head -c 65536 /dev/zero | tr '\0' a) <(head -c 65536 image)
}
it "a program with librnbd writes and reads a disk" disk

echoes() {
  serve server "$@" "$anywhere"
  local client
  for client in "$programs/echo-client" "$programs/echo-client.c" "$python $source_dir/examples/echo/client.py"; do
    # shellcheck disable=SC2086
    limited $client "$server_uri" 'hello over there' | tee said
    [[ $(<said) == 'hello over there' ]] || fail "something else came back"
  done
}
it "clients in C++, C and Python get their text back from a server in C++" echoes "$programs/echo-server"
it "... and from one in C" echoes "$programs/echo-server.c"
it "... and from one in Python" echoes "$python" "$source_dir/examples/echo/server.py"

short_enough() {
  local file
  for file in "$source_dir"/examples/echo/*.{cpp,c,py}; do
    (($(wc -l <"$file") <= 30)) || fail "$file has more than 30 lines"
  done
  (($(wc -l <"$source_dir/examples/kv/kv.cpp") <= 40)) || fail "kv.cpp has more than 40 lines"
  (($(wc -l <"$source_dir/examples/kv/kv.py") <= 25)) || fail "kv.py has more than 25 lines"
}
it "the examples are as short as the tutorial says" short_enough

keeps_values() {
  serve server "$@" serve "$anywhere"
  local face kv="$python $source_dir/examples/kv/kv.py"
  for face in "$programs/kv-kv" "$kv"; do
    # shellcheck disable=SC2086
    limited $face put "$server_uri" colour "as $face says"
    # shellcheck disable=SC2086
    [[ $(limited $kv get "$server_uri" colour) == "as $face says" ]] || fail "another value"
  done
  status_of 1 "$programs/kv-kv" get "$server_uri" nothing
  says said 'No such file or directory'
}
it "a key-value service in C++ keeps what clients in C++ and Python put there" \
  keeps_values "$programs/kv-kv"
it "... and so does one in Python" keeps_values "$python" "$source_dir/examples/kv/kv.py"

ships_tensors() {
  local mib=64
  [[ -z ${FULL-} ]] || mib=1024
  $python -c 'import numpy' || skip "python3-numpy is not installed"
  serve server "$python" "$source_dir/examples/tensor/tensor.py" serve "$anywhere"
  limited "$python" "$source_dir/examples/tensor/tensor.py" send "$server_uri" "$mib"
}
it "an array goes to the server and comes back the same, in pieces" ships_tensors

replicates() {
  serve one "$programs/kv-kv" serve "$anywhere"
  local first=$server_uri
  serve two "$programs/kv-kv" serve "$anywhere"
  local second=$server_uri
  serve three "$programs/kv-kv" serve "$anywhere"
  local all=("$first" "$second" "$server_uri")
  limited "$programs/replicate-replicate" key value "${all[@]}"
  kill_hard two
  limited "$programs/replicate-replicate" key newer "${all[@]}"
  [[ $(limited "$programs/kv-kv" get "$first" key) == newer ]] || fail "the first has it not"
  kill_hard three
  status_of 1 "$programs/replicate-replicate" key newest "${all[@]}"
}
it "a value is replicated as long as most servers live" replicates

client_runs() { kill -0 "${pid[client]}" 2>/dev/null; }

# The counter's file has so many bytes, or the client is through.
counted_or_over() { ! client_runs || (($(stat -c %s "$case_dir/log") >= $1)); }

# Kills the server of the counter whenever a sixth of the 100,000 records more is written.
restart_until_end() {
  local kills=0 sixth=$((100000 * 32 / 6))
  while ((kills < 5)); do
    eventually 120 counted_or_over $(($(stat -c %s "$case_dir/log") + sixth))
    client_runs || break
    kill_hard server
    spawn server "$programs/counter-counter" serve "rtrs+tcp://127.0.0.1:$port" "$case_dir/log"
    kills=$((kills + 1))
  done
  wait_end client $((120 * slow)) || fail "the client does not come to its end"
  cat client.out client.log
  ((status == 0 && kills > 0)) || fail "status $status after $kills restarts"
  read -r _ was_done _ unknown _ failed _ counter <client.out
}

exact_over_restarts() {
  serve server "$programs/counter-counter" serve "$anywhere" "$case_dir/log"
  spawn client "$programs/counter-counter" add "$server_uri" 100000 resend
  restart_until_end
  ((was_done == 100000 && unknown == 0 && failed == 0 && counter == 100000)) ||
    fail "the counter is not exact"
}
it "100,000 increments are exact although the server is killed in the midst of them" \
  exact_over_restarts

honest_over_restarts() {
  serve server "$programs/counter-counter" serve "$anywhere" "$case_dir/log"
  spawn client "$programs/counter-counter" add "$server_uri" 100000
  restart_until_end
  ((was_done + unknown == 100000 && failed == 0)) || fail "some ended otherwise"
  ((was_done <= counter && counter <= was_done + unknown)) ||
    fail "the counter is not between what was answered and what may have been done"
}
it "... and without a memory of its own in the server the client is told what is in doubt" \
  honest_over_restarts

moved_or_over() { ! client_runs || carried "forwarded.$1" "$2"; }
# The path through HOST carries so much more, or the client is through.
moves() { eventually 60 moved_or_over "$1" $(($(number "forwarded.$1") + 20000)); }

exact_over_paths() {
  serve server "$programs/counter-counter" serve "$anywhere" "$case_dir/log"
  start_forward 127.0.0.1
  local first=$forward_port cuts=0
  start_forward 127.0.0.2
  local second=$forward_port
  spawn client "$programs/counter-counter" add \
    "rtrs+tcp://127.0.0.1:$first,127.0.0.2:$second" 200000
  eventually 20 test -e forwarded.127.0.0.1 -a -e forwarded.127.0.0.2
  while client_runs && ((cuts < 4)); do
    moves 127.0.0.1
    end_forward 127.0.0.1
    moves 127.0.0.2
    start_forward 127.0.0.1 "$first"
    moves 127.0.0.1
    end_forward 127.0.0.2
    moves 127.0.0.1
    start_forward 127.0.0.2 "$second"
    cuts=$((cuts + 2))
  done
  wait_end client $((120 * slow)) || fail "it hangs"
  end_forward 127.0.0.1
  end_forward 127.0.0.2
  cat client.out client.log
  read -r _ was_done _ unknown _ failed _ counter <client.out
  ((cuts > 0 && was_done == 200000 && unknown == 0 && failed == 0 && counter == 200000)) ||
    fail "the counter is not exact"
}
it "increments are exact while paths are cut, and nobody sees an error" exact_over_paths

python_face() {
  limited "$python" "$source_dir/tests/integration/library_python.py"
}
it "Python's calls, errors, buffers and tasks behave as the module says" python_face

finish
