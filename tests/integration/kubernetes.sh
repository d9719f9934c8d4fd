#!/bin/bash
# The manifests of examples/kubernetes, as far as they can be tried without a cluster: what their
# containers, and the driver of their volume, would run.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"

# words MANIFEST EXPRESSION: of `each`, its objects by kind; one word a line.
words() {
  requires_python yaml
  limited /usr/bin/python3 - "$source_dir/examples/kubernetes/$1" "$2" <<'PY'
import sys, yaml
each = {found["kind"]: found for found in yaml.safe_load_all(open(sys.argv[1]))}
print(*eval(sys.argv[2]), sep="\n")
PY
}

# here WORD...: with the places of this case in the place of a pod's.
here() {
  sed -e "s#/run/disks#$PWD/disks#; s#/etc/rnbd/#$PWD/keys/#; s#storage.example#$address#" "$1"
}

attaches() {
  requires openssl nbdcopy
  mkdir disks keys
  "${ctl_command[@]}" keygen host1 "$PWD/server.psk" --out keys/host1.psk
  chmod 440 keys/host1.psk
  random_file image 4M
  start_server --tls require --tls-psk "$PWD/server.psk" --export "disk0=$PWD/image,ro=host1"
  words pod.yaml 'each["Pod"]["spec"]["initContainers"][0]["args"]' >words.txt
  here words.txt >bridge.txt
  mapfile -t arguments <bridge.txt
  says bridge.txt '^--listen=unix:'
  spawn bridge "${bridge_command[@]}" "${arguments[@]}"
  words pod.yaml 'each["Pod"]["spec"]["initContainers"][0]["startupProbe"]["exec"]["command"]' >words.txt
  here words.txt >probe.txt
  mapfile -t probe <probe.txt
  eventually 20 "${probe[@]}"
  words pod.yaml 'each["Pod"]["spec"]["containers"][0]["args"]' >words.txt
  here words.txt | sed "s#^null:#$PWD/copy#" >program.txt
  mapfile -t arguments <program.txt
  : >copy
  nbdcopy "${arguments[@]}"
  cmp image copy
}
it "the pod's bridge attaches with its key, its probe succeeds, and its program reads the disk" attaches

# Its parameters may come in any order.
stages() {
  random_file image 4M
  start_server --export "disk0=$PWD/image"
  local attributes='each["PersistentVolume"]["spec"]["csi"]["volumeAttributes"]' order
  words volume.yaml "[${attributes}['nbdkit.csi.k8s.io/plugin']]" >plugin.txt
  [[ $(<plugin.txt) == rnbd ]] || fail "it is about another plugin"
  for order in False True; do
    words volume.yaml "([key.removeprefix('nbdkit.csi.k8s.io/param-') + '=' + value
      for key, value in sorted(${attributes}.items(), reverse=$order) if '/param-' in key] +
      ${attributes}['nbdkit.csi.k8s.io/extra-args'].split())" >words.txt
    here words.txt >nbdkit.txt
    mapfile -t arguments <nbdkit.txt
    start_nbdkit "$plugin" "${arguments[@]}"
    # As nbd-client would have it.
    spawn client /usr/bin/python3 -u -c 'import nbd, signal, sys
h = nbd.NBD()
h.connect_uri(sys.argv[1])
h.pwrite(b"x" * 4096, 0)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("holds")
signal.pause()' "$uri"
    wait_for_line client.out holds
    start_bridge --access rw "rnbd+tcp://$address/disk0"
    fails nbdinfo "$uri"
    says bridge.log 'another client has it open for writing'
    stop bridge
    stop client
    stop nbdkit
  done
}
it "the volume's nbdkit serves the disk to one node, and another one is refused" stages

# An image without a tag is the latest one, which a node fetches from a registry though it has it.
named() {
  local manifest version
  version=$("${bridge_command[@]}" --version)
  version=${version##* }
  for manifest in pod server; do
    grep -o 'image: rnbd-.*' "$source_dir/examples/kubernetes/$manifest.yaml" >images.txt
    fails grep -v ":$version\$" images.txt
  done
}
it "the manifests name the images that build-images makes, with their version" named

finish
