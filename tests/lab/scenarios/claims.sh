# shellcheck shell=bash
# A client's address over RDMA is the one that packets go to, not the one that its message says: two guests.
# SPDX-License-Identifier: BSD-3-Clause

start_choosy() {
  rnbd_server --listen rdma:10.99.0.1:1234,auth=none,from=10.99.0.2 \
    --listen rdma:10.99.0.1:1235,auth=none,from=10.99.0.9 --export disk0=memory:1M
}
# answer_to PORT CLAIMED ANSWER
answer_to() {
  local answer
  answer=$("$source_dir/tests/lab/lib/claim-address" 10.99.0.2 10.99.0.1 "$1" "$2")
  [[ $answer == "$3" ]] || fail "who says that he is $2 is $answer at port $1"
}
claim() {
  rxe_down
  modprobe -r rdma_rxe # it keeps the port
  answer_to 1234 10.99.0.2 accepted
  answer_to 1234 10.99.0.9 accepted
  answer_to 1235 10.99.0.2 rejected
  answer_to 1235 10.99.0.9 rejected
}
look() {
  says rnbd-server.log 'auth refused peer=10.99.0.2:40000 listener=rdma:10.99.0.1:1235'
  ! grep -q '10\.99\.0\.9:' rnbd-server.log || fail "the log has an address that nobody has"
  stop rnbd-server
}
claims() {
  on server start_choosy
  on client claim
  on server look
}

boot server client
it "nobody gets in by saying that he has another address" claims
finish
