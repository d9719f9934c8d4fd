# shellcheck shell=bash
# The commands of a page of the documentation, for tests that run them.
# SPDX-License-Identifier: BSD-3-Clause

# page_commands FILE HEADING: the indented lines of that section, without the remarks behind them.
page_commands() {
  awk -v heading="## $2" '
    /^## / { within = $0 == heading }
    within && sub(/^    /, "") { sub(/ +# .*/, ""); print }' "$1"
}
