// SPDX-License-Identifier: BSD-3-Clause
// A queue pair that only remembers what was posted.
#pragma once

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "rdma/core/queue_pair.hpp"

namespace rtrs {

class FakeQueuePair final : public QueuePair {
 public:
  struct Post {
    enum class Kind { write_imm, write, send, send_imm, send_inv } kind;
    RemoteMemory to;
    std::vector<std::byte> data;
    std::vector<std::byte> header;
    std::uint32_t immediate = 0;
  };

  std::vector<Post> posts;
  std::map<std::uint32_t, MutableBytes> exposed;
  std::map<std::uint32_t, unsigned> revocations;
  std::uint64_t receives = 0;
  Ticket sent_up_to = ~Ticket{0};   ///< what sent() answers at most
  std::uint64_t bytes_carried = 0;  ///< what carried() answers
  int disowned = 0;
  int detours_ended = 0;
  bool anywhere = false;    ///< what sends_from_anywhere() answers
  bool in_arrival = false;  ///< what arriving() answers
  bool landed = true;       ///< what collect() answers
  bool in_place = false;    ///< what works_in_place() answers

  Ticket write_with_immediate(RemoteMemory to, ConstBytes data, ConstBytes header,
                              std::uint32_t immediate) override {
    return add({Post::Kind::write_imm, to, copy(data), copy(header), immediate});
  }
  Ticket write(RemoteMemory to, ConstBytes data) override {
    return add({Post::Kind::write, to, copy(data), {}, 0});
  }
  Ticket send(ConstBytes message) override {
    return add({Post::Kind::send, {}, copy(message), {}, 0});
  }
  Ticket send_with_immediate(ConstBytes message, std::uint32_t immediate) override {
    return add({Post::Kind::send_imm, {}, copy(message), {}, immediate});
  }
  Ticket send_with_invalidate(std::uint32_t key) override {
    return add({Post::Kind::send_inv, {0, key}, {}, {}, 0});
  }
  void post_receives(unsigned count, std::uint32_t) override { receives += count; }
  RemoteMemory expose(std::uint32_t window, MutableBytes memory) override {
    exposed[window] = memory;
    return {0x1000 * (window + 1), 0x100 + window + 0x10 * revocations[window]};
  }
  void revoke(std::uint32_t window) override {
    exposed.erase(window);
    ++revocations[window];
  }
  bool collect(std::uint32_t, std::uint32_t) override { return landed; }
  bool works_in_place(std::uint32_t) const override { return in_place; }
  void withdraw(std::uint32_t window) override { exposed.erase(window); }
  void flush() override {}
  bool arriving() const override { return in_arrival; }
  Ticket sent() const override { return std::min(sent_up_to, Ticket{posts.size()}); }
  std::uint64_t carried() const override { return bytes_carried; }
  void disown_unsent() override { ++disowned; }
  void end_detour() override { ++detours_ended; }
  bool sends_from_anywhere() const override { return anywhere; }

 private:
  static std::vector<std::byte> copy(ConstBytes bytes) { return {bytes.begin(), bytes.end()}; }
  Ticket add(Post post) {
    posts.push_back(std::move(post));
    return posts.size();
  }
};

}  // namespace rtrs
