#!/bin/bash
# The ABI of librtrs and librnbd is that of tests/integration/librtrs.abi and librnbd.abi: programs go on working
# that were compiled before. UPDATE=1 writes those files anew, for a change that is meant: fields at the end, new
# functions.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"

# of NAME FOLDER: the library to look at.
of() {
  library=$build_dir/$2/$1.so.0
  baseline=$source_dir/tests/integration/$1.abi
  headers=$source_dir/$2/include
}
rtrs=(librtrs rdma/library)
rnbd=(librnbd bridge/librnbd)

can_compare() {
  [[ -z $sanitizer ]] || skip "a sanitizer adds to what the library exports"
  requires abidiff abidw
  [[ $(uname -m) == x86_64 ]] || skip "the ABI was recorded on x86_64, and this is $(uname -m)"
}

# The public types and functions, and nothing that depends on the folder or the compiler's options.
# Sources are named from the build folder, as if that were a folder of the sources.
record() {
  abidw --headers-dir "$headers" --drop-private-types --exported-interfaces-only --no-comp-dir-path \
    --no-corpus-path --no-show-locs --no-elf-needed --out-file "$1" "$library"
  sed -i "s|='$source_dir/|='../|" "$1"
}

# compare BASELINE: 0 when the library has exactly that ABI.
compare() {
  record now.abi
  abidiff "$1" now.abi >difference.txt
}

same_as_recorded() {
  can_compare
  of "$@"
  [[ -z ${UPDATE-} ]] || record "$baseline"
  compare "$baseline" && return
  cat difference.txt
  fail "the ABI has changed. If fields were added at an end, or functions: UPDATE=1 tests/integration/abi.sh"
}
it "types and functions are those of tests/integration/librtrs.abi" same_as_recorded "${rtrs[@]}"
it "... and those of librnbd.abi" same_as_recorded "${rnbd[@]}"

no_folder_of_a_machine() {
  of "$@"
  ! grep -n "='/" "$baseline" || fail "the record has an absolute path"
}
it "the record of librtrs names no folder of the machine that made it" no_folder_of_a_machine "${rtrs[@]}"
it "... and neither does that of librnbd" no_folder_of_a_machine "${rnbd[@]}"

# planted WHAT SED-EXPRESSION: another ABI, which must be told from the library's.
planted() {
  sed -E "$2" "$baseline" >other.abi
  ! cmp -s other.abi "$baseline" || fail "the record has no $1"
  if compare other.abi; then fail "$1 goes unnoticed"; fi
}

differences_are_seen() {
  can_compare
  of "${rtrs[@]}"
  planted "a field at another place" \
    '/class-decl name=.rtrs_incoming./,/<\/class-decl>/ s/layout-offset-in-bits=.640./layout-offset-in-bits="704"/'
  planted "a function that is gone" "s/rtrs_set_policy/rtrs_use_policy/"
  planted "another size of a structure" "/class-decl name='rtrs_id'/ s/size-in-bits='192'/size-in-bits='128'/"
  planted "another value of a name" "/enumerator name='RTRS_WARNING'/ s/value='2'/value='4'/"
  of "${rnbd[@]}"
  planted "a function that is gone" "s/rnbd_open_beside/rnbd_open_near/"
  planted "another size of a structure" "/class-decl name='rnbd_end'/ s/size-in-bits='128'/size-in-bits='192'/"
}
it "a field that moves, a function that goes and a value that changes are noticed" \
  differences_are_seen

finish
