// SPDX-License-Identifier: BSD-3-Clause
// A session with any number of paths, driven by hand.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "rdma/core/server/path.hpp"
#include "rdma/core/server/session.hpp"
#include "rdma/wire/immediate.hpp"
#include "rdma/wire/messages.hpp"
#include "tests/unit/core/fake_queue_pair.hpp"
#include "tests/unit/core/server_owners.hpp"

namespace rtrs::test {

inline constexpr std::uint32_t kChunk = 8192;
inline constexpr std::byte kUnused{0xDD};

/// Keeps what it is asked until told to finish it, or ends it at once.
class Handler final : public ServerHandler {
 public:
  void* on_session_up(ServerSession&) override {
    ++ups;
    return this;
  }
  void on_session_down(ServerSession&) override { ++downs; }
  void on_request(ServerSession&, ServerRequest& request) override {
    messages.emplace_back(reinterpret_cast<const char*>(request.message.data()),
                          request.message.size());
    if (at_once) return request.finish(*at_once);
    running.push_back(&request);
  }
  void finish_oldest(int error = 0) {
    ServerRequest* request = running.front();
    running.erase(running.begin());
    request->finish(error);
  }

  int ups = 0;
  int downs = 0;
  std::optional<int> at_once;  ///< the errno
  std::vector<std::string> messages;
  std::vector<ServerRequest*> running;
};

inline ServerSessionOptions options(bool exactly_once, std::uint32_t more_features = 0) {
  return {.queue_depth = 4,
          .max_io_size = 4096,
          .max_header_size = 4096,
          .extension = exactly_once,
          .features = (exactly_once ? wire::kFeatureExactlyOnce : 0U) | more_features,
          .session_epoch = 77,
          .volatile_epoch = 88};
}

/// A path of one connection, as a driver that closes what it is told to.
struct TestPath final : PathOwner {
  explicit TestPath(ServerSession& s, bool new_keys = false)
      : PathOwner{
            s, {.cid_count = 1, .new_keys = new_keys, .access = wire::PathAccess::non_optimized}} {
    handler = &path.add(0, pair);
    REQUIRE(say_name("host") == nullptr);
    pair.posts.clear();
  }
  void on_fenced(Complaint, bool fault) override {
    fenced = true;
    faulty = fault;
    session.on_path_closed(path);
  }
  void on_unused(std::span<const MutableBytes> unused, std::uint64_t bytes) override {
    for (const MutableBytes part : unused) std::ranges::fill(part, kUnused);
    held = bytes;
  }
  void on_gone() override { gone = true; }
  Complaint say_name(const char* name) {
    return handler->on_message(wire::bytes_of(wire::encode_info_request(name)), {});
  }
  Complaint immediate(std::uint32_t value) {
    const Complaint complaint = handler->on_write_with_immediate(value, 0);
    if (alone && session.has_pending()) session.judge_pending();
    return complaint;
  }

  /// A write of 512 bytes. Generation 0: the message has no trailer.
  Complaint write(std::uint32_t permit, std::uint32_t generation, const char* text = "text",
                  std::uint16_t flags = 0, std::uint32_t length = 512) {
    std::byte* at = memory.data() + permit * kChunk + length;
    std::memcpy(at, text, 4);
    std::uint32_t user = 4;
    if (generation != 0) {
      const wire::WriteTrailer trailer{.generation = generation, .flags = flags};
      std::memcpy(at + 4, &trailer, sizeof(trailer));
      user += sizeof(trailer);
    }
    const wire::WriteHeader header{.type = 2, .user_length = static_cast<std::uint16_t>(user)};
    std::memcpy(at + user, &header, sizeof(header));
    return immediate(encode(wire::RequestImmediate{permit, length + user}, 4));
  }
  Complaint read(std::uint32_t permit) {
    std::byte* at = memory.data() + permit * kChunk + 64;
    std::memcpy(at, "read", 4);
    const wire::ReadHeader header{.type = 3, .user_length = 4, .descriptor_count = 1};
    const wire::Descriptor descriptor{.address = 0xABC000, .key = 55, .length = 64};
    std::memcpy(at + 4, &header, 8);
    std::memcpy(at + 12, &descriptor, 16);
    return immediate(encode(wire::RequestImmediate{permit, 68}, 4));
  }
  void close() {
    path.close();
    session.on_path_closed(path);
  }
  /// The first bytes of the permit's chunk whose memory has not been given back.
  std::size_t kept(std::uint32_t permit) const {
    const auto chunk = memory.begin() + std::ptrdiff_t{permit} * kChunk;
    return static_cast<std::size_t>(std::find(chunk, chunk + kChunk, kUnused) - chunk);
  }
  bool closed() const { return path.state() == ServerPathState::closed; }
  /// The errno of its only answer, -1 = none.
  int answer(std::uint32_t permit) const {
    if (pair.posts.empty()) return -1;
    REQUIRE(pair.posts.size() == 1);
    const auto response = wire::decode_response(pair.posts[0].immediate);
    CHECK(response.buffer_id == permit);
    return response.error;
  }

  FakeQueuePair pair;
  QueuePairHandler* handler = nullptr;
  bool alone = true;  ///< what is read here is judged before another path is read
  bool fenced = false;
  bool faulty = false;
  bool gone = false;
  std::optional<std::uint64_t> held;  ///< as the path said last
};

/// A session without paths.
struct Bench {
  explicit Bench(bool exactly_once = true, std::uint32_t more_features = 0)
      : session{options(exactly_once, more_features), handler, owner} {}
  Handler handler;
  SessionOwner owner;
  ServerSession session;
};

}  // namespace rtrs::test
