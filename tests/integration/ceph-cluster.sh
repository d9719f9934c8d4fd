# shellcheck shell=bash
# A Ceph cluster for the cases of a script, which ends with it. To be sourced before the first case.
# The settings are those of tests/ceph/cluster.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/ceph-here.sh"

cluster_dir=$(mktemp -d "${TMPDIR:-/tmp}/rnbd-ceph.XXXXXX")
export PORT=$((10000 + $$ % 10000 * 2)) # below what the kernel gives to clients
# Its daemons belong to no case.
cluster() { env -u RNBD_TEST_CASE "$source_dir/tests/ceph/cluster" "$1" "$cluster_dir"; }
# However the script ends, the cluster ends with it.
end_cluster() {
  cluster stop
  rm -rf "$cluster_dir"
}
trap end_cluster EXIT
trap 'exit 143' TERM INT
cluster start
export CEPH_CONF=$cluster_dir/ceph.conf
more_logs() { timeout 10 ceph -s | sed "s/^/      | /" || true; }

# holder IMAGE: the client that has the image's lock, as the cluster names it.
holder() { rbd lock list "$1" | awk 'END { print $NF }'; }
is_held() { [[ -n $(holder "$1") ]]; }
is_on_blocklist() { ceph osd blocklist ls 2>/dev/null | grep -qF "$1 "; }
osd() { kill "-$1" "$(<"$cluster_dir/osd.0.pid")"; }

# another_client_writes IMAGE [SECONDS]: one that knows nothing of us.
another_client_writes() {
  timeout $((${2:-120} * slow)) rbd bench --io-type write --io-size 4K --io-total 4K --io-pattern seq "$1"
}
# same_as_written IMAGE: nothing is lost that was answered to the writers.
same_as_written() {
  rbd export --no-progress "$1" image
  "$here/stamps.py" check image
  rm image
}
# goes_on: the first writer gets answers again.
goes_on() { eventually 180 number_above acked.0 $(($(number acked.0) + 20)); }
