# shellcheck shell=bash
# The Debian packages of what was built, for scripts that install them.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"

# Packages what the build folder has, once, into $work_dir/packages. FULL=1 compiles it anew, as
# dpkg-buildpackage does for people.
packages() {
  requires dpkg-buildpackage dh
  [[ -z $sanitizer ]] || skip "nobody packages sanitized programs"
  [[ ! -d $work_dir/packages/done ]] || return 0
  [[ ! -d $work_dir/packages ]] || fail "the packages do not build, see the first case"
  mkdir -p "$work_dir/packages/source"
  (cd "$source_dir" && { git ls-files -co --exclude-standard 2>/dev/null ||
    find . -name 'build*' -prune -o -type f -print; } | tar -cT - --ignore-failed-read) |
    tar -xC "$work_dir/packages/source"
  local build=$build_dir profiles=
  [[ -z ${FULL-} ]] || build=
  # Ceph's libraries are not everywhere.
  [[ -e $build_dir/bin/rnbd-backend-rbd.so ]] || profiles=pkg.rnbdkit.norbd
  (cd "$work_dir/packages/source" &&
    env ${build:+RNBDKIT_BUILD="$build"} DEB_BUILD_PROFILES="$profiles" \
      DEB_BUILD_OPTIONS="nocheck noautodbgsym parallel=$(nproc)" \
      dpkg-buildpackage -b -us -uc -d) >"$work_dir/packages/build.log" 2>&1 ||
    { tail -n 40 "$work_dir/packages/build.log"; fail "dpkg-buildpackage fails"; }
  mkdir "$work_dir/packages/done"
}
