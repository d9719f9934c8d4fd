# shellcheck shell=bash
# Stages of hostile_server.py as cases.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"

# In stages with time in them many programs run side by side.
stage() {
  local command=("${nbdkit_command[@]}" "$plugin")
  [[ $face != bridge ]] || command=("${bridge_command[@]}")
  limited /usr/bin/python3 -B "$source_dir/tests/integration/hostile_server.py" "$1" "$face" "${command[@]}"
}
