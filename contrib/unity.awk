# Sources that may be compiled as one: prints "NUMBER FILE" for each file of the command line. At most
# `most` have the same number, and no two of them have one name for things of their own.
# SPDX-License-Identifier: BSD-3-Clause

# Whatever stands before a bracket, a brace, a semicolon or an equals sign on a line that begins a
# declaration counts as a name. A word too many costs a batch that is smaller.
function take_names(line,   meaning, name) {
  sub(/\/\/.*/, "", line)
  meaning = line ~ /^(using|namespace) .*;/ ? line : FILENAME  # aliases may stand twice
  while (match(line, /[A-Za-z_][A-Za-z_0-9]*( =|[({;[])|^(struct|class|union|enum|enum class) [A-Za-z_0-9]+/)) {
    name = substr(line, RSTART, RLENGTH)
    line = substr(line, RSTART + RLENGTH)
    sub(/^(struct|class|union|enum|enum class) /, "", name)
    sub(/[^A-Za-z_0-9].*/, "", name)
    if (name !~ /^([A-Z_]+|static_assert|sizeof|decltype|milliseconds|seconds|expected)$/) names[space name] = meaning
  }
}

function fits(batch,   name) {
  if (count[batch] >= most) return 0
  for (name in names) if ((batch, name) in taken && taken[batch, name] != names[name]) return 0
  return 1
}

function place(file,   batch, name) {
  for (batch = 0; !fits(batch); ++batch) {
  }
  ++count[batch]
  for (name in names) taken[batch, name] = names[name]
  print batch, file
  split("", names)
}

FNR == 1 {
  if (previous != "") place(previous)
  previous = FILENAME
  local = 0
  space = ""
}
/^namespace [A-Za-z_0-9:]+ \{/ { space = space $2 "::" }
/^namespace \{/ { local = 1 }
/^\}  \/\/ namespace$/ { local = 0 }
/^\}  \/\/ namespace ./ { sub(/[^:]*::$/, "", space) }
/^#define / { sub(/\(.*/, ""); names[$2] = FILENAME }
(local && /^[A-Za-z]/) || /^static / { take_names($0) }
END { if (previous != "") place(previous) }
