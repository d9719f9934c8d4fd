// SPDX-License-Identifier: BSD-3-Clause
// One simulated connection between a client and the server: two directions with delays, and what
// can happen to them.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "rdma/core/queue_pair.hpp"
#include "tests/sim/knobs.hpp"
#include "tests/sim/world.hpp"

namespace sim {

class SimQueuePair;

enum class Side : std::uint8_t { client, server };
constexpr Side other(Side side) { return side == Side::client ? Side::server : Side::client; }

/// One operation of a queue pair on its way.
struct Packet {
  enum class Kind : std::uint8_t {
    record,      ///< a connect record
    write,       ///< into exposed memory
    message,     ///< into a posted receive
    invalidate,  ///< takes a receive, ends a key
    read,        ///< of a region
    read_data,   ///< its answer
    end,         ///< the connection is over
    bind,        ///< never travels: the key of a chunk becomes good
    unbind,      ///< never travels: it ends
  };
  Kind kind = Kind::write;
  rtrs::Ticket ticket = 0;
  rtrs::RemoteMemory to{};
  std::optional<std::uint32_t> immediate{};
  rtrs::ConstBytes source{};         ///< read when the packet departs
  std::vector<std::byte> payload{};  ///< until then what follows `source`
  std::uint32_t landed = 0;          ///< bytes that are in their place already
  bool stale = false;                ///< a copy, whose key is over
  std::uint32_t length = 0;          ///< bytes to be read
  bool takes_receive() const {
    return kind == Kind::message || kind == Kind::invalidate ||
           (kind == Kind::write && immediate.has_value());
  }
};

/// A fault on the way of a path: all its connections meet it, also later ones.
struct Obstacle {
  /// Bytes of a message, by its sender; what is larger never arrives, and nothing behind it does,
  /// because a transport that keeps order sends the same again and again.
  std::array<std::size_t, 2> largest{~std::size_t{0}, ~std::size_t{0}};
  /// A connection, but 0, that carried nothing for longer is forgotten on the way; 0 = never.
  Duration idle_max{};
  Instant since{};
};

/// Packets of one direction arrive in order; everything else is up to the seed.
class Wire : public std::enable_shared_from_this<Wire> {
 public:
  /// A connect record arrives at a side that nobody has attached to.
  using Accept = std::function<void(std::shared_ptr<Wire>, rtrs::ConstBytes)>;

  Wire(World& world, const NetworkKnobs& knobs, std::uint64_t session, std::uint16_t cid,
       Accept accept);

  World& world() { return world_; }
  const NetworkKnobs& knobs() const { return knobs_; }
  std::uint64_t session() const { return session_; }  ///< the client's serial number of it
  std::uint16_t cid() const { return cid_; }
  /// The path of the session that it belongs to.
  unsigned path() const { return path_; }
  void set_path(unsigned path) { path_ = path; }
  /// Its client proves to be somebody else.
  void set_impostor() { impostor_ = true; }
  bool is_impostor() const { return impostor_; }
  /// A clone of the server may make a session for it.
  void set_welcome() { welcome_ = true; }
  bool is_welcome() const { return welcome_; }
  /// Which of its sessions the server has taken the connection into: a secret between the ends.
  std::uint64_t session_epoch() const { return session_epoch_; }
  void set_session_epoch(std::uint64_t epoch) { session_epoch_ = epoch; }

  void attach(Side side, SimQueuePair& queue_pair) { ends_[index(side)] = &queue_pair; }
  /// The sender must wait: the receiver does not look (streams only).
  bool full(Side from) const;
  void carry(Side from, Packet packet);
  /// Bytes of both directions that the client knows to have come over until `at`, which must be one
  /// of the last seconds: all that has arrived, and over a stream the arrived part of a message.
  std::uint64_t carried(Instant at) const;
  /// When the sender knows that what it has sent has arrived; never, if it will not.
  std::optional<Instant> acknowledged(Side from);
  /// The receiver has taken one packet.
  void taken(Side by);
  /// One side has gone: the other one finds out when all that was sent has arrived, or some of it.
  void close(Side side);

  // Faults.
  void cut();
  /// Nothing arrives for a while, then everything in order.
  void stall(Duration time);
  /// The messages of one side arrive after a while from now on, in order, and none is lost.
  void hush(Side from, Duration time);
  /// Since when nothing comes to the client for that; none: something may come.
  std::optional<Instant> mute_since() const;
  /// Since when no silence of that kind is in its way, nor was a moment ago.
  Instant calm_since() const { return hushed_until_ + kMoment; }
  /// Nothing arrives any more; who has sent something finds out after the transport's timeout.
  void silence(Side from);
  /// The client is told that the connection is over. Its messages are under way for a while yet,
  /// and the server learns nothing meanwhile.
  void cut_late(Duration lag);
  /// Messages under way end with the client's end of the connection, as on hardware queue pairs.
  void set_prompt() { prompt_ = true; }
  bool is_prompt() const { return prompt_; }
  /// It is cut as soon as the next request of the client has arrived.
  void cut_behind_request() { cuts_behind_request_ = true; }
  void set_obstacle(const Obstacle& obstacle);
  void end_obstacle() { obstacle_ = {}; }
  /// Remembers the last write of the client.
  void keep_copies() { keeps_copies_ = true; }
  /// Its key is over, so that no copy of it must land.
  bool has_stale_copy() const;
  void send_stale_copy();
  /// Messages were lost, or are late.
  bool disturbed() const {
    return silent_[0] || silent_[1] || late_until_ != Instant{} || hushed();
  }
  /// Some fault has hit it.
  bool touched() const { return touched_ || disturbed(); }
  bool over() const { return over_; }

 private:
  /// A message on its way, from the first byte's arrival to the last one's.
  struct Passage {
    Instant begin;
    Instant end;
    std::size_t bytes;
  };

  /// Until what has arrived is looked at.
  static constexpr Duration kMoment = 100ms;

  bool hushed() const { return hushed_until_ != Instant{} && world_.now() <= calm_since(); }
  static std::size_t index(Side side) { return static_cast<std::size_t>(side); }
  Instant schedule(Side from, std::size_t bytes);
  void meet_obstacle(Side from, const Packet& packet);
  void deliver(Side from);
  void lose(Side from);
  void end(Side from);

  World& world_;
  const NetworkKnobs& knobs_;
  std::uint64_t session_;
  std::uint16_t cid_;
  unsigned path_ = 0;
  std::uint64_t session_epoch_ = 0;
  Accept accept_;
  Scope scope_;
  std::array<SimQueuePair*, 2> ends_{};
  std::array<std::deque<Packet>, 2> flight_;
  std::array<Instant, 2> last_arrival_{};
  std::array<std::deque<Passage>, 2> passages_;
  std::array<std::uint64_t, 2> passed_{};  ///< bytes before those
  Instant silent_since_ = Instant::max();  ///< in one direction, for good
  std::array<unsigned, 2> under_way_{};
  std::array<bool, 2> silent_{};
  std::array<bool, 2> breaking_{};
  Obstacle obstacle_;
  Instant last_carried_;
  Instant hushed_until_{};
  Instant mute_at_{};  ///< the client's side of that
  Instant mute_until_{};
  Instant late_until_{};  ///< what comes from the client arrives then
  bool touched_ = false;
  bool prompt_ = false;
  bool cuts_behind_request_ = false;
  bool impostor_ = false;
  bool welcome_ = false;
  bool keeps_copies_ = false;
  std::optional<Packet> copy_;
  bool over_ = false;
};

}  // namespace sim
