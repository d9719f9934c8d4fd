// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/wire/handshake.hpp"
#include "rdma/wire/immediate.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace rtrs::wire;

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto answer = decode_connect_response(fuzz::Input{data, size}.rest());
  if (!answer) {
    fuzz::require(fuzz::failed_with(answer, {DecodeError::too_short, DecodeError::bad_magic,
                                             DecodeError::bad_version, DecodeError::bad_value}),
                  "only documented errors");
    return 0;
  }
  if (answer->error != 0) {
    fuzz::require(answer->error > 0 && answer->error <= 4095, "a reject has a positive errno");
    const auto again = decode_connect_response(bytes_of(encode_reject(answer->error)));
    fuzz::require(again && again->error == answer->error, "a reject survives encoding");
    return 0;
  }
  const AcceptParameters& accept = answer->accept;
  fuzz::require(fits_immediate(accept.queue_depth, accept.chunk_size()),
                "every chunk can be named in an immediate");
  fuzz::require(accept.max_io_size >= kMinMaxIoSize, "a sector fits into a request");
  fuzz::require(accept.max_header_size >= kMinMaxHeaderSize, "an OPEN fits into a request");
  fuzz::require(accept.chunk_size() > accept.max_io_size, "the chunk size did not wrap");
  const auto record = encode(accept);
  const auto again = decode_connect_response(bytes_of(record));
  fuzz::require(again && again->error == 0, "what we encode can be decoded");
  fuzz::require(fuzz::same_bytes(encode(again->accept), record), "encoding is stable");
  return 0;
}
