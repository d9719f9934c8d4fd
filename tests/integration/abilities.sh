#!/bin/bash
# NBD clients are offered what the storage can do, all of it and nothing else, whatever the storage
# is and whatever wraps it.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"

# Says what is offered at URIs, and what becomes of commands that are not. nbdkit itself knows that
# all is data where a plugin has no extents.
ask() {
  limited /usr/bin/python3 - "$face" "$@" <<'PY'
import errno, sys, nbd

ABILITIES = "flush fua trim zero fast_zero cache multi_conn extents".split()

def connect(uri):
    h = nbd.NBD()
    h.set_strict_mode(0)
    h.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
    h.connect_uri(uri)
    return h

def offered(h):
    told = {name for name in ABILITIES[:-1] if getattr(h, "can_" + name)()}
    return told | ({"extents"} if h.can_meta_context(nbd.CONTEXT_BASE_ALLOCATION) else set())

def refuses(h, uri, ability, command):
    if ability in offered(h):
        return
    try:
        command()
        sys.exit(f"{uri}: {ability} is not offered, and done")
    except nbd.Error as error:
        assert error.errnum == errno.EINVAL, (uri, ability, error)

def refuses_what_is_not_offered(h, uri):
    refuses(h, uri, "flush", h.flush)
    refuses(h, uri, "cache", lambda: h.cache(4096, 0))
    if h.is_read_only():
        return
    refuses(h, uri, "fua", lambda: h.pwrite(b"x" * 4096, 0, nbd.CMD_FLAG_FUA))
    refuses(h, uri, "trim", lambda: h.trim(4096, 0))
    refuses(h, uri, "fast_zero", lambda: h.zero(4096, 0, nbd.CMD_FLAG_FAST_ZERO))

def truth(words):
    """Words, or the URI of an NBD server whose abilities they are."""
    if "://" not in words:
        return set(words.split())
    inner = offered(connect(words))
    if "flush" in inner:
        inner |= {"fua", "multi_conn"}  # by a flush, and by one connection for all
    return inner | {"zero"}

for argument in sys.argv[2:]:
    uri, words = argument.split(" ", 1)
    h = connect(uri)
    expected, told = truth(words), offered(h)
    if sys.argv[1] == "nbdkit":
        expected.add("extents")
    assert told == expected, f"{uri}: missing {expected - told}, made up {told - expected}"
    refuses_what_is_not_offered(h, uri)
PY
}

exports=()
questions=()
# export_as NAME STORAGE ABILITIES...
export_as() {
  exports+=(--export "$1=$2")
  questions+=("$1 ${*:3}")
}

offers_the_truth() {
  requires_python nbd
  start_server "${exports[@]}"
  attach_to "rnbd+tcp://$address" dynamic-export=true
  local question
  for question in "${questions[@]}"; do
    ask "nbd+unix:///${question%% *}?socket=$socket ${question#* }"
  done
}

kept_here="flush fua trim zero fast_zero multi_conn extents"

of_what_is_here() {
  truncate -s 4M image direct ro
  export_as file "$PWD/image" "$kept_here" cache
  export_as direct "$PWD/direct,direct" "$kept_here"
  export_as ro "$PWD/ro,ro" flush cache multi_conn extents
  export_as memory memory:4M "$kept_here"
  export_as null null:4M "$kept_here"
  export_as fault fault:nth=0:memory:4M "$kept_here"
  export_as delay delay:read=1us:fault:nth=0:memory:4M "$kept_here"
  offers_the_truth
}
it "files, memory and null, bare and wrapped, are offered with what they can" of_what_is_here

of_a_block_device() {
  ((EUID == 0)) || skip "only root can make loop devices"
  truncate -s 4M image
  local device
  device=$(losetup --find --show "$PWD/image" 2>/dev/null) || skip "no loop devices here"
  at_end losetup -d "$device"
  local queue=/sys/block/${device#/dev/}/queue abilities="flush fua zero cache multi_conn"
  [[ $(<"$queue/discard_max_bytes") == 0 ]] || abilities+=" trim"
  [[ $(<"$queue/write_zeroes_max_bytes") == 0 ]] || abilities+=" fast_zero"
  export_as disk "$device" "$abilities"
  offers_the_truth
}
it_plugin "a block device is offered with what its queue can" of_a_block_device

# upstream NAME SCRIPTS...: an NBD server that can write, and what the scripts say.
upstream() {
  # shellcheck disable=SC2016 # nbdkit's shell expands it
  nbdkit_name=$1 start_nbdkit eval get_size='echo 4M' can_write='exit 0' pwrite='cat >/dev/null' \
    pread='dd if=/dev/zero bs=$3 count=1 status=none' "${@:2}"
  export_as "$1" "nbd:$uri" "$uri"
}

no_flush() {
  upstream bare
  export_as wrapped "delay:read=1us:nbd:$uri" "$uri"
  upstream fua can_fua='echo native'
  upstream shared can_multi_conn='exit 0'
  offers_the_truth
  says server.log "bare.sock: the NBD server has no flush, nor FUA, so clients are not offered any"
  says server.log "fua.sock: the NBD server has no flush, so clients are not offered any"
}
it_plugin "NBD servers without a flush are offered without, and the log tells of them" no_flush

with_flush() {
  upstream flush can_flush='exit 0' flush='exit 0'
  upstream both can_flush='exit 0' flush='exit 0' can_fua='echo native'
  offers_the_truth
  if grep 'the NBD server has no' server.log; then fail "it has one"; fi
}
it_plugin "NBD servers with a flush are offered with it, and with FUA whether they have that or not" with_flush

of_other_abilities() {
  upstream trim can_trim='exit 0' trim='exit 0'
  upstream zero can_zero='exit 0' zero='exit 0' can_fast_zero='exit 0'
  upstream cache can_cache='echo native' cache='exit 0'
  # shellcheck disable=SC2016 # nbdkit's shell expands it
  upstream extents can_extents='exit 0' extents='echo 0 4M'
  offers_the_truth
}
it_plugin "NBD servers are offered with the trim, fast zeroing, cache and extents of each" of_other_abilities

finish
