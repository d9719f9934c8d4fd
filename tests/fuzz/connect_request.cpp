// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/wire/handshake.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace rtrs::wire;

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto request = decode_connect_request(fuzz::Input{data, size}.rest());
  if (!request) {
    fuzz::require(fuzz::failed_with(request, {DecodeError::too_short, DecodeError::bad_magic,
                                              DecodeError::bad_version, DecodeError::bad_count,
                                              DecodeError::bad_value}),
                  "only documented errors");
    return 0;
  }
  fuzz::require(size >= sizeof(ConnectRequest), "a whole record was there");
  fuzz::require(request->cid < request->cid_count, "cid is one of cid_count");
  fuzz::require(request->cid_count <= kMaxConnections, "cid_count is within its limit");
  fuzz::require(request->extension.present || request->extension.features == 0,
                "no feature without the extension");
  fuzz::require(request->kind == PathKind::requests ||
                    (request->extension.features & kFeatureMemoryPaths) != 0,
                "no memory path without the feature");
  const auto record = encode(*request);
  const auto again = decode_connect_request(bytes_of(record));
  fuzz::require(again.has_value(), "what we encode can be decoded");
  fuzz::require(fuzz::same_bytes(encode(*again), record), "encoding is stable");
  return 0;
}
