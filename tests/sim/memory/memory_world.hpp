// SPDX-License-Identifier: BSD-3-Clause
// Users of one brick with sessions, each with paths for requests and memory paths. The server is
// the shipped one: rtrs::ServerSession and rtrs::ServerPath, rnbd::BlockServer with all below it,
// and the rules of the brick. The world knows every key, so it tells at once when one outlives its
// end:
//
//   M1  UNMAP, REVOKE PATH and CLOSE are answered when the keys that they end are dead
//   M2  whoever is let in as the next writer finds no key of an earlier one alive
//   M3  memory becomes another block's when no key opens it
//   M4  a path that was revoked gets no more keys, and nobody gets keys of another session's path
//   M5  a memory path dies alone: the session and its other paths go on
//   M6  a memory path keeps no session, and comes to none without other paths
//   M7  a recall is told again until the client has heard it
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "bridge/protocol/brick_messages.hpp"
#include "bridge/server/block_server.hpp"
#include "tests/sim/memory/memory_brick.hpp"
#include "tests/sim/memory/memory_link.hpp"
#include "tests/sim/rng.hpp"

namespace sim {

/// A rule is broken.
struct MemoryViolation : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class MemoryWorld {
 public:
  MemoryWorld(std::uint64_t seed, bool trace);
  ~MemoryWorld();
  /// Errors: MemoryViolation.
  void run();
  std::uint64_t operations() const { return operations_; }

 private:
  using Work = std::function<void()>;
  using Bytes = std::vector<std::byte>;
  using Then = std::function<void(int error, const Bytes& data)>;
  using Uuid = rtrs::wire::Uuid;

  /// A session at the server.
  struct Session final : rtrs::ServerSessionOwner {
    explicit Session(MemoryWorld& w) : world{w} {}
    void on_lingering() override { world.lingers(*core); }
    void on_gone() override {}

    MemoryWorld& world;
    std::unique_ptr<rtrs::ServerSession> core;
    std::uint32_t recalls = 0;  ///< that it was asked to tell
    std::uint32_t heard = 0;    ///< by its client
    bool said_goodbye = false;
  };
  /// A request of a client that has no end yet.
  struct Operation {
    Bytes message;
    std::uint32_t room = 0;  ///< bytes of its answer; 0: a write
    std::uint64_t number = 0;
    std::uint32_t generation = 0;
    bool may_give_up = false;
    MemoryLink* over = nullptr;  ///< the link that it was sent over; null: waits
    Then then;
  };
  struct Map {
    std::uint64_t id = 0;
    std::uint64_t generation = 0;
    std::uint32_t key = 0;
  };
  struct User {
    unsigned number = 0;
    std::optional<unsigned> session{};
    std::vector<MemoryLink*> links{};                 ///< that it takes for alive
    MemoryLink* memory = nullptr;                     ///< likewise
    std::optional<Uuid> lost{};                       ///< a memory path that is to be revoked
    std::map<std::uint32_t, Operation> operations{};  ///< by permit
    std::array<std::uint32_t, kMemoryDepth> generations{};
    std::uint32_t opens = 0;
    std::uint32_t maps_asked = 0;
    bool opening = false, mapping = false, listing = false, revoking = false, closing = false;
    std::optional<std::uint32_t> device{};
    std::vector<Map> maps{};
    bool recalled = false;
    bool stubborn = false;  ///< gives nothing back
    bool away = false;      ///< and never comes back
  };

  // memory_world.cpp: time, the server, the end
  [[noreturn]] void fail(const std::string& text) const { throw MemoryViolation(text); }
  void say(const std::string& text) const;
  void later(Work work) { events_.push_back(std::move(work)); }
  void on_reactor(Work work);
  void step(bool faults);
  bool deliver();
  void finish();
  bool quiet() const;
  void takes(brick::Slot slot) const;
  unsigned new_session(unsigned user);
  void lingers(rtrs::ServerSession& session);
  MemoryLink& new_link(User& user, rtrs::wire::PathKind kind);
  void fenced(const MemoryLink& link, const char* why, bool fault);
  void exposes(const MemoryLink& link) const;
  void released(MemoryLink& link);
  Uuid some_uuid();
  Session& of(const User& user) { return *sessions_[*user.session]; }

  // memory_user.cpp
  void act(User& user);
  void act_with_memory(User& user);
  void connect(User& user);
  void connect_memory(User& user);
  void lose(User& user, MemoryLink* link);
  void lose_memory(User& user);
  void abandon(User& user, const Uuid& path);
  void begin_anew(User& user);
  bool submit(User& user, Bytes message, std::uint32_t room, Then then, bool may_give_up = false);
  void send(User& user, std::uint32_t permit);
  void send_waiting(User& user);
  void hear(User& user, MemoryLink& link, const ToClient& message);
  void open(User& user);
  void close(User& user);
  void alloc(User& user);
  void map(User& user, const Uuid& path, bool mine);
  void mapped(User& user, const rnbd::wire::BrickMap& asked, bool mine, int error,
              const Bytes& data);
  void unmap(User& user, std::size_t which);
  void revoke(User& user);
  void give_back(User& user);
  void write_one_sided(const User& user);
  void land(std::size_t which);
  void end_keys(const char* what, const std::function<bool(const CardKey&)>& which);

  Rng rng_;
  bool trace_;
  unsigned steps_ = 0, losses_ = 0, memory_losses_ = 0,
           hostile_ = 0;  ///< the last three: per mille
  std::vector<Work> events_;
  std::deque<Work> reactor_;
  std::uint64_t now_ = 0;
  std::uint64_t next_ = 1;  ///< uuids, operations
  std::uint64_t operations_ = 0;
  std::uint64_t blocks_ = 4;

  CardKeys keys_;
  std::vector<std::uint32_t> writes_;  ///< keys of one-sided writes that have not landed
  std::set<Uuid> revoked_;             ///< answered so
  std::vector<std::unique_ptr<Session>> sessions_;
  std::unique_ptr<MemoryBrick> brick_;
  std::unique_ptr<rnbd::ExportCatalogue> catalogue_;
  struct EventLoop final : rnbd::Services {
    explicit EventLoop(MemoryWorld& its) : world{its} {}
    bool has_event_loop() const override { return true; }
    void later(rtrs::Reactor*, Work work) const override { world.on_reactor(std::move(work)); }
    MemoryWorld& world;
  };
  EventLoop event_loop_{*this};
  std::unique_ptr<rnbd::BlockServer> server_;
  std::vector<std::unique_ptr<MemoryLink>> links_;  ///< also those of the past
  std::vector<User> users_;
  const User* survivor_ = nullptr;  ///< all others have gone away
};

}  // namespace sim
