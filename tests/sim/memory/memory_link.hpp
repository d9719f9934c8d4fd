// SPDX-License-Identifier: BSD-3-Clause
// One path between a client and the simulated server, of one connection: the server's end is the
// shipped rtrs::ServerPath, and the network card knows the keys of a memory path.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "bridge/backend/brick/types.hpp"
#include "rdma/core/regions.hpp"
#include "rdma/core/server/path.hpp"
#include "rdma/core/server/session.hpp"

namespace sim {

inline constexpr std::uint16_t kMemoryDepth = 4;

/// A key at the server's network card. Its memory can be read and written until it is dead.
struct CardKey {
  rtrs::MutableBytes memory;
  rtrs::wire::Uuid path{};
  unsigned session = 0;
  bool alive = true;
  bool over = false;  ///< its client was told so
};
using CardKeys = std::map<std::uint32_t, CardKey>;

/// A message of the server on its way.
struct ToClient {
  std::uint32_t immediate = 0;
  std::uint64_t operation = 0;  ///< whose answer brings data
  std::vector<std::byte> data{};
};

/// A message of the client on its way.
struct ToServer {
  std::uint32_t permit = 0;
  std::vector<std::byte> bytes{};  ///< for the permit's chunk
  std::uint32_t immediate = 0;
};

class MemoryLink final : public rtrs::ServerPathOwner {
 public:
  struct Events {
    /// Runs work at some moment.
    std::function<void(std::function<void()> work)> later;
    /// The server's session has ended it. `fault`: because the client broke a rule.
    std::function<void(MemoryLink& link, const char* why, bool fault)> fenced;
    /// A key is made.
    std::function<void(const MemoryLink& link)> exposes;
    /// The server has closed it, and its keys are dead.
    std::function<void(MemoryLink& link)> released;
  };
  MemoryLink(unsigned user, unsigned number, rtrs::ServerSession& session,
             const rtrs::ServerPathOptions& options, CardKeys& keys, Events events);
  ~MemoryLink();
  MemoryLink(const MemoryLink&) = delete;
  MemoryLink& operator=(const MemoryLink&) = delete;

  /// The info request arrives. False: the path is not let in.
  bool say_name(const char* name);
  /// The oldest message of the client arrives.
  void deliver_to_server();
  /// The server finds out that it is over.
  void close();
  bool is_memory() const { return path_->is_memory(); }
  const rtrs::wire::Uuid& uuid() const { return path_->options().uuid; }
  unsigned user() const { return user_; }
  unsigned session() const { return number_; }

  std::deque<ToServer> to_server;
  std::deque<ToClient> to_client;
  bool client_lives = true;
  bool server_lives = true;
  bool released = false;

 private:
  class Pair;
  class Card;
  // For its path at the server
  rtrs::PathRefusal admit(std::string_view) override { return {}; }
  bool provide_chunks() override;
  void on_connected() override {}
  void on_fenced(rtrs::Complaint why, bool fault) override;
  void on_unused(std::span<const rtrs::MutableBytes>, std::uint64_t) override {}
  void on_gone() override {}
  void delay_answer(rtrs::ServerRequest& request, int error) override {
    session_.answer(request, error);
  }
  void release();

  unsigned user_;
  unsigned number_;  ///< of its session
  rtrs::ServerSession& session_;
  CardKeys& keys_;
  Events events_;
  std::unique_ptr<Card> card_;
  std::unique_ptr<Pair> pair_;
  std::vector<std::byte> chunks_;
  std::unique_ptr<rtrs::ServerPath> path_;
  rtrs::QueuePairHandler* handler_ = nullptr;
  bool in_progress_ = false;
};

}  // namespace sim
