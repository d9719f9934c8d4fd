// SPDX-License-Identifier: BSD-3-Clause
// Input: a byte with the number of descriptors, and messages of a front-end.
#include "bridge/vhost/messages.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace rnbd::vhost;
using rtrs::wire::DecodeError;

namespace {

void check(const Message& message, std::size_t descriptors) {
  if (const auto* table = std::get_if<MemoryTable>(&message.payload)) {
    fuzz::require(table->count <= kMaxRegions && table->count == descriptors,
                  "each region has its file");
    return;
  }
  if (const auto* ring = std::get_if<RingDescriptor>(&message.payload)) {
    fuzz::require(ring->index < kMaxQueues, "a ring is one of ours");
    fuzz::require(ring->present == (descriptors == 1), "its descriptor is there");
    return;
  }
  fuzz::require(descriptors == 0, "no other message has descriptors");
  if (const auto* state = std::get_if<RingState>(&message.payload))
    fuzz::require(state->index < kMaxQueues, "a ring is one of ours");
  if (const auto* ring = std::get_if<RingAddresses>(&message.payload))
    fuzz::require(ring->index < kMaxQueues, "a ring is one of ours");
  if (const auto* range = std::get_if<ConfigRange>(&message.payload)) {
    fuzz::require(range->offset + range->size <= kMaxConfig, "a range ends inside");
    const std::array<std::byte, kMaxConfig> content{};
    const Answer answer = Answer::config(*range, content);
    fuzz::require(answer.bytes().size() == sizeof(MessageHeader) + 12 + range->size,
                  "its answer has what was asked for");
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input{data, size};
  const std::size_t descriptors = input.take<std::uint8_t>();
  ConstBytes rest = input.rest();
  for (;;) {
    const auto header = decode_header(rest);
    if (!header) {
      fuzz::require(fuzz::failed_with(header, {DecodeError::too_short, DecodeError::bad_version,
                                               DecodeError::bad_type, DecodeError::bad_value,
                                               DecodeError::too_long}),
                    "only documented errors");
      return 0;
    }
    fuzz::require(header->size <= kMaxPayload, "a payload has room");
    rest = rest.subspan(sizeof(MessageHeader));
    if (rest.size() < header->size) return 0;
    const auto message = decode_message(*header, rest.first(header->size), descriptors);
    if (message) {
      check(*message, descriptors);
    } else {
      fuzz::require(fuzz::failed_with(message, {DecodeError::bad_length, DecodeError::bad_count,
                                                DecodeError::bad_value}),
                    "only documented errors");
    }
    rest = rest.subspan(header->size);
  }
}
