// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/vhost/messages.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <vector>

namespace messages_test {

using namespace rnbd::vhost;
using rtrs::wire::bytes_of;
using rtrs::wire::DecodeError;

namespace {

std::vector<std::byte> bytes(std::initializer_list<std::uint64_t> words) {
  std::vector<std::byte> all(8 * words.size());
  std::size_t at = 0;
  for (const std::uint64_t word : words) {
    std::memcpy(all.data() + at, &word, 8);
    at += 8;
  }
  return all;
}

Result<CheckedHeader> header(std::uint32_t type, std::uint32_t flags, std::uint32_t size) {
  return decode_header(bytes_of(MessageHeader{type, flags, size}));
}

Result<Message> message(MessageType type, const std::vector<std::byte>& payload,
                        std::size_t descriptors = 0) {
  return decode_message({type, false, static_cast<std::uint32_t>(payload.size())}, payload,
                        descriptors);
}

std::uint64_t both(std::uint32_t low, std::uint32_t high) {
  return low | std::uint64_t{high} << 32;
}

}  // namespace

TEST_CASE("vhost messages: a header is of a known request, of version 1, and not too long") {
  CHECK(header(1, 1, 0)->type == MessageType::get_features);
  CHECK(header(5, 9, 264)->needs_reply);
  CHECK(header(1, 2, 0).error() == DecodeError::bad_version);
  CHECK(header(1, 5, 0).error() == DecodeError::bad_value);
  CHECK(header(1, 17, 0).error() == DecodeError::bad_value);
  CHECK(header(6, 1, 0).error() == DecodeError::bad_type);
  CHECK(header(UINT32_MAX, 1, 0).error() == DecodeError::bad_type);
  CHECK(header(5, 1, kMaxPayload + 1).error() == DecodeError::too_long);
  CHECK(decode_header(bytes_of(le64{1})).error() == DecodeError::too_short);
}

TEST_CASE("vhost messages: payloads have the length of their kind") {
  CHECK(message(MessageType::get_features, {}).has_value());
  CHECK(message(MessageType::get_features, bytes({1})).error() == DecodeError::bad_length);
  CHECK(std::get<Bits>(message(MessageType::set_features, bytes({7}))->payload).value == 7);
  CHECK(message(MessageType::set_features, {}).error() == DecodeError::bad_length);
  CHECK(message(MessageType::set_vring_num, bytes({1, 2})).error() == DecodeError::bad_length);
  CHECK(message(MessageType::set_vring_addr, bytes({0, 1, 2, 3})).error() ==
        DecodeError::bad_length);
  const auto addresses = std::get<RingAddresses>(
      message(MessageType::set_vring_addr, bytes({both(3, 0), 1, 2, 4, 5}))->payload);
  CHECK(addresses.index == 3);
  CHECK(addresses.descriptors == 1);
  CHECK(addresses.used == 2);
  CHECK(addresses.available == 4);
}

TEST_CASE("vhost messages: rings are numbered below their limit") {
  const auto state =
      std::get<RingState>(message(MessageType::set_vring_base, bytes({both(5, 77)}))->payload);
  CHECK(state.index == 5);
  CHECK(state.number == 77);
  CHECK(message(MessageType::get_vring_base, bytes({both(kMaxQueues, 0)})).error() ==
        DecodeError::bad_count);
  CHECK(message(MessageType::set_vring_addr, bytes({both(kMaxQueues, 0), 1, 2, 4, 5})).error() ==
        DecodeError::bad_count);
}

TEST_CASE("vhost messages: descriptors come where the message says so, and nowhere else") {
  CHECK(std::get<RingDescriptor>(message(MessageType::set_vring_call, bytes({4}), 1)->payload)
            .present);
  CHECK_FALSE(
      std::get<RingDescriptor>(message(MessageType::set_vring_kick, bytes({0x104}), 0)->payload)
          .present);
  CHECK(message(MessageType::set_vring_call, bytes({4}), 0).error() == DecodeError::bad_count);
  CHECK(message(MessageType::set_vring_call, bytes({4}), 2).error() == DecodeError::bad_count);
  CHECK(message(MessageType::set_vring_call, bytes({0x104}), 1).error() == DecodeError::bad_count);
  CHECK(message(MessageType::set_vring_call, bytes({0x204}), 1).error() == DecodeError::bad_value);
  CHECK(message(MessageType::set_vring_call, bytes({kMaxQueues}), 1).error() ==
        DecodeError::bad_count);
  CHECK(message(MessageType::get_features, {}, 1).error() == DecodeError::bad_count);
  CHECK(message(MessageType::set_vring_enable, bytes({0}), 1).error() == DecodeError::bad_count);
}

TEST_CASE("vhost messages: a table has as many regions as descriptors, and no more than fit") {
  const auto table = message(MessageType::set_mem_table, bytes({1, 10, 20, 30, 40}), 1);
  REQUIRE(table.has_value());
  const MemoryRegion& region = std::get<MemoryTable>(table->payload).regions[0];
  CHECK(region.guest == 10);
  CHECK(region.size == 20);
  CHECK(region.user == 30);
  CHECK(region.offset == 40);
  CHECK(message(MessageType::set_mem_table, bytes({0}), 0).has_value());
  CHECK(message(MessageType::set_mem_table, bytes({1, 10, 20, 30, 40}), 2).error() ==
        DecodeError::bad_count);
  CHECK(message(MessageType::set_mem_table, bytes({1, 10, 20, 30}), 1).error() ==
        DecodeError::bad_length);
  CHECK(message(MessageType::set_mem_table, bytes({9}), 9).error() == DecodeError::bad_count);
  CHECK(message(MessageType::set_mem_table, bytes({UINT32_MAX}), 0).error() ==
        DecodeError::bad_count);
  CHECK(message(MessageType::set_mem_table, {}, 0).error() == DecodeError::bad_length);
}

TEST_CASE("vhost messages: a range of the configuration ends inside it") {
  std::vector<std::byte> question(12 + 60);
  const std::uint32_t size = 60;
  std::memcpy(question.data() + 4, &size, sizeof(size));
  const auto range = message(MessageType::get_config, question);
  REQUIRE(range.has_value());
  CHECK(std::get<ConfigRange>(range->payload).size == 60);
  question.pop_back();
  CHECK(message(MessageType::get_config, question).error() == DecodeError::bad_length);
  std::vector<std::byte> beyond(12 + 1);
  const std::array<std::uint32_t, 2> head{kMaxConfig, 1};
  std::memcpy(beyond.data(), head.data(), sizeof(head));
  CHECK(message(MessageType::get_config, beyond).error() == DecodeError::bad_value);
}

TEST_CASE("vhost messages: answers have the flag of answers, and the length of their payload") {
  const auto of = [](const Answer& answer) {
    return rtrs::wire::copy_of<MessageHeader>(answer.bytes());
  };
  const Answer bits = Answer::bits(MessageType::get_features, 5);
  CHECK(of(bits).flags == (kVersion | kReplyFlag));
  CHECK(of(bits).size == 8);
  CHECK(bits.bytes().size() == 20);
  const std::array<std::byte, kMaxConfig> content{};
  const Answer config = Answer::config({0, kMaxConfig}, content);
  CHECK(of(config).size == 12 + kMaxConfig);
  CHECK(of(Answer::ring_state(MessageType::get_vring_base, {1, 2})).size == 8);
}

}  // namespace messages_test
