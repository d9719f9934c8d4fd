#!/bin/bash
# Rights: who may open, write and see what, and how that is refused and written down.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"

ctl() { "${ctl_command[@]}" "$@"; }

keys() {
  local name
  for name in "$@"; do ctl keygen "$name" keys.psk --out "$name.psk"; done
}
# as NAME EXPORT [PARAMETERS...]: attaches the export with the client's key.
as() {
  local name=$1 export=$2
  nbdkit_name=$name attach_to \
    "rnbds+tcp://$name@$address/$export?tls-psk-file=$PWD/$name.psk" "${@:3}"
}
serve() { start_server --tls=require --tls-psk=keys.psk --log-level debug "$@"; }

# refused NAME EXPORT TEXT: what the client is told when it opens the export at its start.
refused() { refused_client "rnbds+tcp://$1@$address/$2?tls-psk-file=$PWD/$1.psk" "$3"; }

opened() {
  keys host1 vm-3 backup
  serve --export 'x=memory:1M,rw=host1,rw=vm-*,ro=backup'
  as host1 x
  nbdsh <<<'h.pwrite(b"1" * 512, 0)'
  stop host1
  as vm-3 x
  nbdsh <<<'assert h.pread(512, 0) == b"1" * 512; h.pwrite(b"3" * 512, 0)'
  stop vm-3
  as backup x
  nbdsh <<<'
assert h.is_read_only()
assert h.pread(512, 0) == b"3" * 512'
  says server.log 'open ok peer=127\.0\.0\.1:[0-9]+ identity=host1 session=.* export=x access=rw'
  says server.log 'open refused peer=.* identity=backup session=.* export=x access=.* why="not in rw"'
}
it "who is in rw writes, who is in ro reads only, and the log says who opened what" opened

alike() {
  local how
  keys host1 stranger
  serve --export x=memory:1M,rw=host1
  refused stranger x 'No such file'
  sed -E "s/'?\<x\>'?/EXPORT/g; s/[0-9]{2,}/N/g" said >forbidden
  refused stranger y 'No such file'
  sed -E "s/'?\<y\>'?/EXPORT/g; s/[0-9]{2,}/N/g" said >absent
  diff forbidden absent
  # The command that it names has the keys that the server asks for.
  how=$(grep -oE "rnbds\+tcp://$address tls-username=\S+ tls-psk=\S+" said) || fail "the advice lacks the key"
  # shellcheck disable=SC2086 # words of a shell
  ctl discover --json $how >found
  says found '"exports":\[\]'
  says server.log 'open refused peer=.* identity=stranger session=.* export=x access=.* why="not in rw or ro"'
  if grep "refused to open 'x'" server.log; then fail "the log tells one refusal twice"; fi
}
it "an export that is forbidden looks like one that is not there" alike

discovered() {
  keys host1 host2
  serve --export a=memory:1M,rw=host1 --export b=memory:2M,ro=host1 --export c=memory:1M,rw=host2 \
    --export d=/nowhere/at-all,rw=host1
  ctl discover --json "rnbds+tcp://host1@$address?tls-psk-file=$PWD/host1.psk" >found
  python3 - found <<'EOF'
import json, sys
found = {e["name"]: e for e in json.load(open(sys.argv[1]))["exports"]}
assert list(found) == ["a", "b", "d"], found
assert [found[n]["access"] for n in "abd"] == ["rw", "ro", "rw"], found
assert [found[n]["state"] for n in "abd"] == ["free", "free", "waiting"], found
assert [found[n]["size"] for n in "abd"] == [1 << 20, 2 << 20, None], found
EOF
  ! ctl discover "rnbds+tcp://host1@$address/a" 2>said || fail "a URI with an export was taken"
  says said 'without /a'
  ! ctl discover "rnbd+tcp://$address" connect-timeout=2s 2>said || fail "it was told without TLS"
  [[ -z $sanitizer ]] || return 0 # it is started by a program without one
  as host1 a
  nbdsh <<EOF
import os
h.pwrite(b"1" * 512, 0)
assert os.system("${ctl_command[*]} discover rnbds+tcp://host1@$address tls-psk=$PWD/host1.psk >found") == 0
EOF
  says found '^a +1 MiB +rw +in use'
}
it "rnbd-ctl discover shows a user the exports that he may open, and opens none" discovered


listed() {
  keys host1 host2
  serve --export a=memory:1M,rw=host1 --export b=memory:1M,ro=host1 --export c=memory:1M,rw=host2
  nbdkit_name=lister start_nbdkit "$plugin" \
    "rnbds+tcp://host1@$address?tls-psk-file=$PWD/host1.psk" dynamic-export=true
  nbdinfo --list --json "$uri" >list
  says list '"export-name": "a"'
  says list '"export-name": "b"'
  if grep -q '"export-name": "c"' list; then fail "another user's export is in the list"; fi
}
it_plugin "a list shows what its reader may open" listed

unsaid() {
  keys host1
  status_of 2 "${server_command[@]}" --listen tcp:127.0.0.1:0 --tls-psk=keys.psk \
    --export x=memory:1M --search-path "$PWD"
  says said "exports 'x': write --export NAME=STORAGE,rw=host1"
  says said 'search-rw='
  cat >conf <<END
[server]
listen = "tcp:127.0.0.1:0"
tls-psk = "$PWD/keys.psk"
[export.x]
storage = "memory:1M"
END
  status_of 2 "${server_command[@]}" --config conf --check-config
  says said 'rw = \["host1"\]'
  echo 'rw = ["host1"]' >>conf
  status_of 0 "${server_command[@]}" --config conf --check-config
  echo 'ro = ["a*b"]' >>conf
  status_of 2 "${server_command[@]}" --config conf --check-config
  says said "conf:7:.*export.x.ro: 'a\*b' has a \* that is not at its end"
}
it "a server that authenticates does not start before it is said who may use what" unsaid

directories() {
  keys host1 host2
  mkdir -p srv/host1 srv/host2
  random_file srv/host1/disk 1M
  random_file srv/host2/disk 1M
  status_of 2 "${server_command[@]}" --listen tcp:127.0.0.1:0 --tls-psk=keys.psk \
    --search-path "$PWD/srv/%SESSNAME%" --search-rw='*'
  says said 'write %IDENTITY%'
  serve --search-path "$PWD/srv/%IDENTITY%" --search-rw='*'
  as host1 disk
  nbdcopy "$uri" copy1
  cmp copy1 srv/host1/disk
  as host2 disk
  nbdcopy "$uri" copy2
  cmp copy2 srv/host2/disk
  refused host1 ../host2/disk 'No such file'
}
it "with %IDENTITY% in the search path each user has a directory" directories

names() {
  keys host1 host2
  serve --export x=memory:1M,rw=host1 --export y=memory:1M,rw=host2 --control "$PWD/control"
  as host1 x session=same
  local first=$uri
  as host2 y session=same
  nbdsh <<<'h.pwrite(b"2" * 512, 0)'
  nbdsh "$first" <<<'h.pwrite(b"1" * 512, 0)'
  ctl --json "$PWD/control" status | tee status
  says status '"session":"same","identity":"host1"'
  says status '"session":"same","identity":"host2"'
}
it "two users may call their sessions the same, and do not disturb each other" names

limited_user() {
  keys host1 host2
  serve --export x=memory:1M,rw=* --max-sessions-per-user 1
  as host1 x session=first
  nbdinfo --size "$uri"
  refused_client "rnbds+tcp://host1@$address/x?tls-psk-file=$PWD/host1.psk" 'Cannot allocate memory' \
    'what one user may have'
  says server.log 'too many sessions of one user \(--max-sessions-per-user\)'
  as host2 x session=second
  nbdinfo --size "$uri"
  status_of 2 "${server_command[@]}" --export x=memory:1M --memory-limit-per-user 1M
  says said 'raise memory-limit-per-user'
}
it "a user who has all that one may have is refused, and another one is not" limited_user

finish
