// SPDX-License-Identifier: BSD-3-Clause
// The duties of every transport, written once. A transport adds a fixture and one line at its end:
//   TEST_CASE_TEMPLATE_INVOKE(queue_pair_conformance, MyFixture);
//
// A fixture connects two queue pairs, `left` and `right`, and offers
//   QueuePair& left(); QueuePair& right();
//   Recorder& heard_by_left(); Recorder& heard_by_right();   // the handlers
//   void settle();               // moves everything that can move
//   bool left_failed(); bool right_failed();   // its connection is no longer usable
//   void close_left();
//   void share_right(MutableBytes memory);   // register_memory() where the transport has it
//   static constexpr bool kKeysEnd;          // a withdrawn window's key opens nothing any more
//   Regions& regions_right();    // what the left side may use by itself, for the second suite:
//   TEST_CASE_TEMPLATE_INVOKE(regions_conformance, MyFixture);
//   void share_left(MutableBytes memory);
// Windows 0..7 of both sides may be used, each up to 1 MiB.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rdma/core/queue_pair.hpp"
#include "rdma/core/regions.hpp"

namespace rtrs::conformance {

/// Remembers what arrived.
class Recorder final : public QueuePairHandler {
 public:
  struct Event {
    bool is_message = false;
    std::optional<std::uint32_t> immediate;
    std::uint32_t bytes = 0;
    std::vector<std::byte> message;
  };

  std::vector<Event> events;
  std::vector<std::uint32_t> revoked;      ///< windows, in order
  std::vector<Ticket> done;                ///< reads and confirmed writes
  Complaint complain = nullptr;            ///< what to answer
  std::function<void()> on_event = [] {};  ///< runs before the answer
  MutableBytes next_detour;                ///< of the next large write

  Complaint on_write_with_immediate(std::uint32_t immediate, std::uint32_t bytes) override {
    events.push_back({false, immediate, bytes, {}});
    on_event();
    return complain;
  }
  MutableBytes detour(std::uint64_t, std::uint32_t, std::uint32_t) override {
    return std::exchange(next_detour, {});
  }
  Complaint on_revoked(std::uint32_t window) override {
    revoked.push_back(window);
    return complain;
  }
  Complaint on_done(Ticket ticket) override {
    done.push_back(ticket);
    on_event();
    return complain;
  }
  Complaint on_message(ConstBytes message, std::optional<std::uint32_t> immediate) override {
    events.push_back({true, immediate, static_cast<std::uint32_t>(message.size()),
                      std::vector<std::byte>(message.begin(), message.end())});
    on_event();
    return complain;
  }
};

/// Bytes that differ from their neighbours, so that shifted data is seen.
inline std::vector<std::byte> pattern(std::size_t size, unsigned seed = 1) {
  std::vector<std::byte> bytes(size);
  std::uint32_t state = seed * 2654435761U + 1;
  for (auto& byte : bytes) {
    state = state * 1664525U + 1013904223U;
    byte = static_cast<std::byte>(state >> 24);
  }
  return bytes;
}

inline bool equal(ConstBytes a, ConstBytes b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0;
}

TEST_CASE_TEMPLATE_DEFINE("a queue pair", Fixture, queue_pair_conformance) {
  Fixture f;
  std::vector<std::byte> memory(1 << 20);
  QueuePair& left = f.left();
  QueuePair& right = f.right();

  SUBCASE("lands data and header, in this order, before it tells the immediate") {
    right.post_receives(1, 0);
    const RemoteMemory target = right.expose(3, memory);
    const auto data = pattern(4096);
    const auto header = pattern(56, 2);
    bool had_landed = false;
    f.heard_by_right().on_event = [&] {
      right.collect(3, 100 + 4096 + 56);
      had_landed = equal(ConstBytes{memory}.subspan(100, 4096), data) &&
                   equal(ConstBytes{memory}.subspan(100 + 4096, 56), header);
    };
    left.write_with_immediate({target.address + 100, target.key}, left.stage(0, data), header,
                              0x0028'1020);
    left.flush();
    f.settle();
    REQUIRE(f.heard_by_right().events.size() == 1);
    CHECK(f.heard_by_right().events[0].immediate == 0x0028'1020);
    CHECK(f.heard_by_right().events[0].bytes == 4096 + 56);
    CHECK(had_landed);
  }

  SUBCASE("moves a megabyte unharmed, and the sender's memory is free when sent() says so") {
    right.post_receives(1, 0);
    const RemoteMemory target = right.expose(0, memory);
    auto data = pattern(memory.size());
    const auto expected = data;
    const Ticket ticket = left.write_with_immediate(target, left.stage(1, data), {}, 1);
    left.flush();
    f.settle();
    REQUIRE(left.sent() >= ticket);
    std::fill(data.begin(), data.end(), std::byte{0});
    f.settle();
    right.collect(0, static_cast<std::uint32_t>(memory.size()));
    CHECK(equal(memory, expected));
    REQUIRE(f.heard_by_right().events.size() == 1);
    CHECK(f.heard_by_right().events[0].bytes == memory.size());
  }

  SUBCASE("keeps the order of many posts, whatever their kind and size") {
    right.post_receives(600, 64);
    const RemoteMemory target = right.expose(0, memory);
    const auto source = pattern(70'000);
    const ConstBytes data = left.stage(1, source);
    for (std::uint32_t i = 0; i < 300; ++i) {
      const ConstBytes piece = data.first((i * 7919) % data.size());
      left.write(target, piece.first(piece.size() / 2));
      left.write_with_immediate(target, piece, {}, 2 * i);
      left.send_with_immediate(data.first(i % 65), 2 * i + 1);
      if (i % 16 == 0) {
        left.flush();
        f.settle();
      }
    }
    left.flush();
    f.settle();
    REQUIRE(f.heard_by_right().events.size() == 600);
    for (std::uint32_t i = 0; i < 600; ++i) {
      CHECK(f.heard_by_right().events[i].immediate == i);
      CHECK(f.heard_by_right().events[i].is_message == (i % 2 == 1));
    }
  }

  SUBCASE("works in both directions at once") {
    std::vector<std::byte> other(memory.size());
    left.post_receives(1, 0);
    right.post_receives(1, 0);
    const RemoteMemory to_right = right.expose(0, memory);
    const RemoteMemory to_left = left.expose(0, other);
    const auto a = pattern(memory.size(), 1);
    const auto b = pattern(memory.size(), 2);
    left.write_with_immediate(to_right, left.stage(1, a), {}, 1);
    right.write_with_immediate(to_left, right.stage(1, b), {}, 2);
    left.flush();
    right.flush();
    f.settle();
    right.collect(0, static_cast<std::uint32_t>(memory.size()));
    left.collect(0, static_cast<std::uint32_t>(other.size()));
    CHECK(equal(memory, a));
    CHECK(equal(other, b));
  }

  SUBCASE("delivers messages, short, long and empty, with and without an immediate") {
    right.post_receives(1, 272);
    right.post_receives(1, 16'008);
    right.post_receives(1, 0);
    left.send(pattern(272));
    left.send(pattern(16'008));
    left.send_with_immediate({}, 9);
    left.flush();
    f.settle();
    const auto& events = f.heard_by_right().events;
    REQUIRE(events.size() == 3);
    CHECK(equal(events[0].message, pattern(272)));
    CHECK_FALSE(events[0].immediate.has_value());
    CHECK(equal(events[1].message, pattern(16'008)));
    CHECK(events[2].message.empty());
    CHECK(events[2].immediate == 9);
  }

  SUBCASE("does not look at the key of an empty write") {
    right.post_receives(1, 0);
    left.write_with_immediate({0xDEAD, 0xBEEF}, {}, {}, 0x8000'0000);
    left.flush();
    f.settle();
    REQUIRE(f.heard_by_right().events.size() == 1);
    CHECK_FALSE(f.right_failed());
  }

  SUBCASE("refuses a write one byte beyond the exposed memory, and none of it lands") {
    right.post_receives(1, 0);
    f.share_right(MutableBytes{memory}.first(4096));
    const RemoteMemory target = right.expose(0, MutableBytes{memory}.first(4096));
    const auto data = pattern(4096);
    left.write_with_immediate({target.address + 1, target.key}, left.stage(1, data), {}, 1);
    left.flush();
    f.settle();
    CHECK(f.right_failed());
    CHECK(f.heard_by_right().events.empty());
    CHECK(equal(memory, std::vector<std::byte>(memory.size())));
  }

  SUBCASE("refuses an address whose end wraps around") {
    right.post_receives(1, 0);
    f.share_right(memory);
    const RemoteMemory target = right.expose(0, memory);
    const auto data = pattern(16);
    left.write_with_immediate({target.address - 1, target.key}, left.stage(1, data), {}, 1);
    left.flush();
    f.settle();
    CHECK(f.right_failed());
    CHECK(f.heard_by_right().events.empty());
  }

  SUBCASE("refuses a key that was never given out") {
    right.post_receives(1, 0);
    const RemoteMemory target = right.expose(0, memory);
    const auto data = pattern(16);
    left.write_with_immediate({target.address, target.key + 1}, left.stage(1, data), {}, 1);
    left.flush();
    f.settle();
    CHECK(f.right_failed());
    CHECK(f.heard_by_right().events.empty());
  }

  SUBCASE("refuses the key of an exposure that ended when the window is exposed again") {
    right.post_receives(1, 0);
    const RemoteMemory old = right.expose(0, memory);
    right.withdraw(0);
    right.expose(0, memory);
    const auto data = pattern(16);
    left.write_with_immediate(old, left.stage(1, data), {}, 1);
    left.flush();
    f.settle();
    // Where keys do not end, what came with an old one lies in memory that nobody collects.
    CHECK(equal(memory, std::vector<std::byte>(memory.size())));
    CHECK(f.right_failed() == Fixture::kKeysEnd);
    CHECK(f.heard_by_right().events.empty() == Fixture::kKeysEnd);
  }

  SUBCASE("drops what arrives for withdrawn memory, but tells the immediate") {
    right.post_receives(1, 0);
    const RemoteMemory target = right.expose(0, memory);
    const auto data = pattern(8192);
    left.write_with_immediate(target, left.stage(1, data), {}, 5);
    right.withdraw(0);
    left.flush();
    f.settle();
    CHECK(equal(memory, std::vector<std::byte>(memory.size())));
    REQUIRE(f.heard_by_right().events.size() == 1);
    CHECK_FALSE(f.right_failed());
  }

  SUBCASE("refuses a message longer than the receive it meets") {
    right.post_receives(1, 8);
    left.send(pattern(9));
    left.flush();
    f.settle();
    CHECK(f.right_failed());
    CHECK(f.heard_by_right().events.empty());
  }

  SUBCASE("uses receives in the order in which they were posted") {
    right.post_receives(1, 100);
    right.post_receives(1, 8);
    left.send(pattern(100));
    left.send(pattern(8));
    left.flush();
    f.settle();
    CHECK(f.heard_by_right().events.size() == 2);
    CHECK_FALSE(f.right_failed());
  }

  SUBCASE("closes the connection when the handler complains, and delivers nothing more") {
    right.post_receives(2, 0);
    f.heard_by_right().complain = "nonsense";
    left.write_with_immediate({}, {}, {}, 1);
    left.write_with_immediate({}, {}, {}, 2);
    left.flush();
    f.settle();
    CHECK(f.right_failed());
    CHECK(f.heard_by_right().events.size() == 1);
  }

  SUBCASE("lets the callers' memory go when it is told to disown it") {
    right.post_receives(1, 0);
    const RemoteMemory target = right.expose(0, memory);
    auto data = pattern(memory.size());
    const auto expected = data;
    const Ticket ticket = left.write_with_immediate(target, left.stage(1, data), {}, 1);
    SUBCASE("all of it") {
      left.disown_unsent();
      CHECK(left.sent() >= ticket);
    }
    SUBCASE("or some of it") { left.disown_unsent_in(data); }
    std::fill(data.begin(), data.end(), std::byte{0});
    left.flush();
    f.settle();
    right.collect(0, static_cast<std::uint32_t>(memory.size()));
    CHECK(equal(memory, expected));
  }

  SUBCASE("tells the other side when it closes") {
    f.close_left();
    f.settle();
    CHECK(f.right_failed());
    CHECK(f.heard_by_right().events.empty());
  }
}

}  // namespace rtrs::conformance
