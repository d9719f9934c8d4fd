// SPDX-License-Identifier: BSD-3-Clause
// A queue pair whose network is the event queue, and which forgives nothing.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rdma/core/queue_pair.hpp"
#include "tests/sim/chunk_keys.hpp"
#include "tests/sim/linux_server.hpp"
#include "tests/sim/sim_regions.hpp"
#include "tests/sim/wire.hpp"

namespace sim {

/// Addresses and keys of exposed memory; one per path and side, like a protection domain.
class KeySource {
 public:
  /// `shared`: the same memory has the same key on every connection, as a memory region has.
  KeySource(World& world, bool shared) : world_{world}, shared_{shared} {}
  rtrs::RemoteMemory issue(rtrs::MutableBytes memory);

 private:
  struct Issued {
    const std::byte* data;
    std::size_t size;
    rtrs::RemoteMemory where;
  };
  World& world_;
  bool shared_;
  std::uint32_t next_ = 0x1000;
  std::vector<Issued> issued_;
};

/// Reads the memory that it sends at a random moment after flush(), and not before sent() has
/// passed it; checks bounds and keys of every arriving write and that a receive is posted for every
/// arriving message. A mistake of the peer's core is a broken rule, not a broken connection.
class SimQueuePair final : public rtrs::QueuePair {
 public:
  enum class Status { drained, more, starves, ended };

  struct Options {
    NodeId node = 0;
    /// Asks for the invalidation of each read's key, and insists on it, as Linux clients do.
    bool linux_like = false;
    /// Takes the generations out of what the client sends, and the extension out of its records, so
    /// that a client that sends again at once looks like Linux's to the server.
    bool resends_at_once = false;
    /// Not null: the server end behaves as a Linux server does.
    LinuxServer* linux_server = nullptr;
    /// Not null: the server's chunks have keys of their own.
    ChunkKeys* chunk_keys = nullptr;
    /// Not null: what the peer may use by itself.
    SimRegions* regions = nullptr;
  };

  SimQueuePair(std::shared_ptr<Wire> wire, Side side, KeySource& keys, Options options);
  ~SimQueuePair();
  SimQueuePair(const SimQueuePair&) = delete;
  SimQueuePair& operator=(const SimQueuePair&) = delete;

  // For the driver.
  std::function<void()> on_ready;                   ///< progress() has something to do
  std::function<void()> on_post;                    ///< something waits for flush()
  std::function<void()> on_sent;                    ///< the memory of some is not read any more
  std::function<void(rtrs::ConstBytes)> on_record;  ///< a connect record came
  std::function<void(std::uint32_t)> on_request;    ///< one is posted, with this immediate
  std::function<void(std::uint32_t)> on_answer;     ///< the handler is about to be told of one
  void send_record(rtrs::ConstBytes record);
  /// Tells the handler of some of what arrived; `heard` counts what it was told.
  Status progress(rtrs::QueuePairHandler& handler, unsigned& heard);
  rtrs::Complaint complaint() const { return complaint_; }
  /// A request is being given up: what it exposed may still be written to by the peer.
  void set_giving_up(bool now) { giving_up_ = now; }
  /// No request may be posted: the peer has said so, and this end has acted on it.
  void forbid_requests(bool forbidden) { requests_forbidden_ = forbidden; }
  /// The payload of the last access notice that was told to the handler and not acted on.
  std::optional<std::uint32_t> notice() const { return notice_; }
  void forget_notice() { notice_.reset(); }
  bool has_arrivals() const { return !inbox_.empty(); }
  /// The core relies on it that nothing lands with this key any more.
  bool is_over(std::uint32_t key) const {
    return options_.chunk_keys != nullptr && options_.chunk_keys->over(key);
  }
  bool idle() const { return queue_.empty(); }  ///< everything posted has been sent
  void close();

  // For the wire.
  void arrive(Packet packet);
  void pump();

  rtrs::Ticket write_with_immediate(rtrs::RemoteMemory to, rtrs::ConstBytes data,
                                    rtrs::ConstBytes header, std::uint32_t immediate) override;
  rtrs::Ticket write_in_any_order(rtrs::RemoteMemory to, rtrs::ConstBytes data,
                                  rtrs::ConstBytes header, std::uint32_t immediate) override;
  rtrs::Ticket write(rtrs::RemoteMemory to, rtrs::ConstBytes data) override;
  rtrs::Ticket send(rtrs::ConstBytes message) override;
  rtrs::Ticket send_with_immediate(rtrs::ConstBytes message, std::uint32_t immediate) override;
  rtrs::Ticket send_with_invalidate(std::uint32_t key) override;
  rtrs::Ticket read(rtrs::RemoteMemory from, rtrs::MutableBytes into) override;
  rtrs::Ticket write_confirmed(rtrs::RemoteMemory to, rtrs::ConstBytes data) override;
  void post_receives(unsigned count, std::uint32_t bytes) override;
  rtrs::RemoteMemory expose(std::uint32_t window, rtrs::MutableBytes memory) override;
  void withdraw(std::uint32_t window) override;
  void revoke(std::uint32_t window) override;
  void flush() override;
  rtrs::Ticket sent() const override { return sent_; }
  bool is_sent(rtrs::Ticket ticket) const override;
  bool arriving() const override { return !inbox_.empty() && inbox_.front().landed > 0; }
  std::uint64_t carried() const override { return wire_->carried(world_.now()); }
  void disown_unsent() override;
  void disown_unsent_in(rtrs::ConstBytes memory) override;

 private:
  struct Window {
    rtrs::MutableBytes memory;
    std::uint64_t address = 0;
    bool exposed = false;
    bool owes_invalidation = false;
    bool invalidated = false;
    bool answered = false;  ///< nothing may come any more
  };
  struct Receives {
    std::uint64_t count;
    std::uint32_t bytes;
  };

  struct Read {
    rtrs::Ticket ticket;
    rtrs::MutableBytes into;
    bool landed;
  };

  rtrs::Ticket post(Packet packet);
  void post_to_device(Packet::Kind kind, std::uint32_t key);
  rtrs::Ticket reply_as_linux(rtrs::RemoteMemory to, rtrs::ConstBytes data,
                              std::uint32_t immediate);
  void depart();
  void carry_out(const Packet& packet);
  std::uint32_t take_generation_out(std::vector<std::byte>& trailer, std::uint32_t immediate);
  void ask_for_invalidation(std::vector<std::byte>& trailer);
  static void add_newer_flag(std::vector<std::byte>& trailer);
  void accept_waiting();
  bool reject_stale(const Packet& packet);
  Status find_room(const Packet& packet, rtrs::QueuePairHandler& handler);
  bool land(Packet& packet);
  void place(Packet& packet, std::size_t upto);
  bool find_target(const Packet& packet, Window& target);
  bool take_receive(const Packet& packet);
  void watch_for_receive();
  // sim_queue_pair_regions.cpp
  void refuse(const Packet& packet);
  void place_in_region(Packet& packet, std::size_t upto);
  void answer_read(const Packet& packet);
  void land_read(const Packet& packet);
  rtrs::Complaint end_read(rtrs::QueuePairHandler& handler);
  std::vector<std::byte> extended(rtrs::ConstBytes record) const;
  void announce(const Packet& packet) const;
  void dispatch(const Packet& packet, rtrs::QueuePairHandler& handler);
  void invalidate(std::uint32_t key);
  void violate(const std::string& rule);

  std::shared_ptr<Wire> wire_;
  World& world_;
  Side side_;
  KeySource& keys_;
  Options options_;
  Scope scope_;
  // Sending
  std::deque<Packet> queue_;
  std::size_t flushed_ = 0;  ///< how many of them may depart
  bool departing_ = false;
  rtrs::Ticket posted_ = 0;
  rtrs::Ticket sent_ = 0;
  rtrs::Ticket disowned_ = 0;  ///< all up to this one are copied
  Instant last_completion_{};  ///< of an unbinding
  // Memory
  std::map<std::uint32_t, Window> windows_;         ///< by key, also those of the past
  std::map<std::uint32_t, std::uint32_t> current_;  ///< window -> key
  std::deque<Receives> receives_;
  std::uint32_t last_receive_ = 0;  ///< bytes of the one taken last
  std::deque<Read> reads_;          ///< under way, oldest first
  // Receiving
  bool refused_ = false;        ///< an access of the peer
  std::deque<Packet> waiting_;  ///< arrived, but no receive is posted (verbs only)
  std::deque<Packet> inbox_;
  std::uint64_t accepted_ = 0;  ///< packets that left waiting_
  bool giving_up_ = false;
  bool requests_forbidden_ = false;
  std::optional<std::uint32_t> notice_;
  bool in_reply_ = false;  ///< an immediate is being told to the handler
  bool closed_ = false;
  bool over_ = false;   ///< the end has arrived
  bool ended_ = false;  ///< and was found
  rtrs::Complaint complaint_ = nullptr;
};

}  // namespace sim
