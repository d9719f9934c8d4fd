#!/bin/bash
# Images of containers are made from the packages, and what examples/kubernetes says of them holds in them:
# user, root that is read-only, commands, probe, signals.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/made_packages.sh"

images=$work_dir/images
containers=(--storage-driver vfs --root "$images/storage" --runroot "$images/run")
buildah() { command buildah "${containers[@]}" "$@"; }

# One of a program, and what it may write to in folders of the case.
image() {
  requires buildah debootstrap
  ((EUID == 0)) || skip "only root can make the root of an image"
  packages
  [[ -d $images/done ]] && return
  [[ ! -d $images ]] || fail "the images are not made, see the first case"
  mkdir -p "$images/bin"
  # The script's calls are to use the same storage.
  printf '#!/bin/sh\nexec /usr/bin/buildah %s "$@"\n' "${containers[*]@Q}" >"$images/bin/buildah"
  chmod +x "$images/bin/buildah"
  PATH=$images/bin:$PATH "$source_dir/contrib/container/build-images" "$work_dir/packages" --with libnbd-bin
  mkdir "$images/done"
}
# value IMAGE EXPRESSION: of its configuration.
value() { buildah inspect --type image "$1" | jq -r ".Docker.config.$2"; }

made() {
  image
  local name
  for name in rnbd-server rnbd-bridge; do
    [[ $(value "$name" User) == 10001:10001 ]] || fail "$name runs as $(value "$name" User)"
    [[ $(value "$name" 'Entrypoint[0]') == "$name" ]] || fail "$name starts $(value "$name" Entrypoint)"
    [[ $(value "$name" StopSignal) == SIGTERM ]] || fail "$name is not ended by SIGTERM"
  done
  [[ $(value rnbd-server 'Healthcheck.Test | join(" ")') == 'CMD rnbd-ctl /run/rnbd/control status' ]] ||
    fail "the health check is $(value rnbd-server Healthcheck)"
}
it "images of server and bridge are made from the packages, without a registry" made

# words MANIFEST KIND EXPRESSION: of `it`, its object of that kind; one word a line.
words() {
  requires_python yaml
  limited /usr/bin/python3 - "$source_dir/examples/kubernetes/$1" "$2" "$3" <<'PY'
import sys, yaml
it = next(each for each in yaml.safe_load_all(open(sys.argv[1])) if each["kind"] == sys.argv[2])
print(*eval(sys.argv[3]), sep="\n")
PY
}
# inside NAME IMAGE VOLUME... [-- COMMAND...]: COMMAND, in place of this process, as a pod would run it: with
# a root that is read-only, and without a capability. A volume is HERE:THERE.
inside() {
  local name=$1 root
  buildah from --name "$name" "$2" >/dev/null
  root=$(buildah mount "$name")
  # shellcheck disable=SC2016 # the inner shell's
  exec unshare --mount --propagation private bash -euc '
    root=$1
    shift
    mount --bind "$root" "$root"
    mount -t proc proc "$root/proc"
    mount --rbind /dev "$root/dev"
    while [[ $1 != -- ]]; do
      mkdir -p "$root${1#*:}"
      mount --bind "${1%%:*}" "$root${1#*:}"
      shift
    done
    shift
    mount -o remount,bind,ro "$root"
    exec chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin RUNTIME_DIRECTORY=/run/rnbd \
      STATE_DIRECTORY=/var/lib/rnbd setpriv --reuid 10001 --regid 10001 --clear-groups --bounding-set=-all \
      --inh-caps=-all --no-new-privs "$@"' bash "$root" "${@:3}"
}

pod() {
  image
  local arguments port
  mkdir -m 750 run disks srv state keys config
  "${ctl_command[@]}" keygen host1 "$PWD/server.psk" --out keys/host1.psk
  mkdir config/keys
  cp server.psk config/keys/
  truncate -s 8M srv/disk0.img
  words server.yaml ConfigMap '[it["data"]["rnbd-server.conf"]]' | sed 's#tcp:\*:1234#tcp:127.0.0.1:0#' >config/rnbd-server.conf
  chown -R 10001:10001 run disks srv state keys config
  chmod 440 keys/* config/keys/*
  words server.yaml StatefulSet 'it["spec"]["template"]["spec"]["containers"][0]["args"]' >args
  mapfile -t arguments <args
  spawn server inside server rnbd-server "$PWD/config:/etc/rnbd" "$PWD/run:/run/rnbd" "$PWD/srv:/srv/rnbd" "$PWD/state:/var/lib/rnbd" \
    -- rnbd-server "${arguments[@]}"
  words server.yaml StatefulSet 'it["spec"]["template"]["spec"]["containers"][0]["livenessProbe"]["exec"]["command"]' >args
  mapfile -t arguments <args
  eventually 20 grep -q 'ready, listening' server.log
  port=$(grep -oP 'ready, listening on tcp:127.0.0.1:\K\d+' server.log)
  (inside probe rnbd-server "$PWD/run:/run/rnbd" -- "${arguments[@]}") | tee probe
  says probe disk0

  words pod.yaml Pod 'it["spec"]["initContainers"][0]["args"]' |
    sed "s#storage.example#127.0.0.1:$port#; s#--access=ro#--access=rw#" >args
  mapfile -t arguments <args
  spawn bridge inside bridge rnbd-bridge "$PWD/keys:/etc/rnbd" "$PWD/disks:/run/disks" -- rnbd-bridge "${arguments[@]}"
  eventually 20 test -S disks/disk0.sock
  [[ $(awk '/^(Uid|CapBnd):/ { print $2 }' "/proc/${pid[server]}/status" | xargs) == '10001 0000000000000000' ]] ||
    fail "it runs with rights: $(cat "/proc/${pid[server]}/status")"
  uri="nbd+unix:///disk0?socket=$PWD/disks/disk0.sock"
  nbdsh <<<'h.pwrite(b"x" * 65536, 65536, nbd.CMD_FLAG_FUA)'
  cmp -n 65536 <(tail -c +65537 srv/disk0.img) <(head -c 65536 /dev/zero | tr '\0' x)
  (inside program rnbd-bridge "$PWD/disks:/run/disks" -- nbdcopy "nbd+unix:///disk0?socket=/run/disks/disk0.sock" null:)
  stop bridge
  stop server
}
it "the pods of server and bridge serve a disk in their images, as a user without rights" pod

finish
