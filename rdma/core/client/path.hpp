// SPDX-License-Identifier: BSD-3-Clause
// One path of a client: connects its connections in order, exchanges the infos, keeps the
// heartbeat.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rdma/core/auth/proof.hpp"
#include "rdma/core/client/lane.hpp"
#include "rdma/core/client/path_proofs.hpp"
#include "rdma/core/client/path_pulse.hpp"
#include "rdma/core/heartbeat.hpp"
#include "rdma/core/option_words.hpp"
#include "rdma/core/queue_pair.hpp"
#include "rdma/wire/handshake.hpp"
#include "rdma/wire/messages.hpp"

namespace rtrs {

/// connecting -> exchanging -> connected -> closed; any -> closed. A path that comes back is a new
/// object with the old uuid.
enum class ClientPathState : std::uint8_t {
  connecting,  ///< connections are being made, in cid order
  exchanging,  ///< all connections stand; the info response is awaited
  connected,   ///< requests may use the path
  closed,      ///< given up; final
};

struct ClientPathOptions {
  std::string session_name;
  wire::Uuid session_uuid{};
  wire::Uuid path_uuid{};
  std::uint16_t reconnect_count = 1;  ///< attempts to make this path so far, with this one
  wire::PathKind kind = wire::PathKind::requests;
  bool first_connection = true;      ///< the server may create the session.
  std::uint16_t io_connections = 1;  ///< beside connection 0
  /// Permits that the session's lanes share, however many the server grants now; 0 = all of them.
  std::uint16_t permits = 0;
  /// The server id that the server must have; 0: it must give none; none: any will do.
  std::optional<std::uint64_t> server_id{};
  std::uint32_t features = 0;
  Duration heartbeat_interval{};
  unsigned heartbeat_misses = 4;
  bool data_rides_with_reply = false;  ///< a property of the transport, see ClientLane::Link
  /// Each connection begins with a proof that both ends have a key; a server that knows no such
  /// thing is refused.
  bool authenticates = false;
  /// A server without the extension is Linux's: its heartbeat limits hold, and only with the
  /// extension do the data ride with the reply.
  bool may_be_linux = false;
  const OptionWords* words = &kProgramWords;
};

/// The driver makes the connections that this class asks for, reports their results, and passes on
/// the arrivals on connection 0. Lanes get their links from here.
///
/// Threads: one at a time (the driver's background thread; the simulator).
/// Source:  docs/protocol.md, connecting, info exchange.
class ClientPath final : public QueuePairHandler {
 public:
  explicit ClientPath(ClientPathOptions options);

  std::uint16_t connection_count() const { return options_.io_connections + 1U; }
  /// The record to send when connection `cid` is opened. Connections are opened in order, one after
  /// another.
  wire::ConnectRequest connect_request(std::uint16_t cid) const;
  /// The server's record for connection `cid`. A complaint ends the attempt; refusal() tells the
  /// server's errno if any.
  [[nodiscard]] Complaint on_answer(std::uint16_t cid, ConstBytes record);
  int refusal() const { return refusal_; }
  /// The server let the path in, and is another one than it must be.
  bool foreign() const {
    return answered() && options_.server_id && *options_.server_id != accepted_.extension.server_id;
  }
  std::uint64_t required_server() const { return options_.server_id.value_or(0); }
  /// True: the server has let connection 0 in.
  bool answered() const { return accepted_.queue_depth != 0; }
  /// True: the answer is also from a holder of our key, where that has to be proven.
  bool believed() const { return answered() && proofs_.first_proven(); }
  /// The server had let it in. If its connections end now the server has told no reason: others may
  /// have needed its place among those that wait to come in.
  bool turned_away() const;
  /// The server was asked to make the session if it does not know it.
  bool may_begin() const { return options_.first_connection; }

  bool authenticates() const { return options_.authenticates; }
  /// Connection `cid` was let in, and proves itself first of all: the result handles its arrivals
  /// until then. They may come while other connections are made.
  auth::ClientProof& start_proof(std::uint16_t cid, QueuePair& queue_pair, auth::ClientKey key,
                                 const auth::Nonce& nonce);
  PathProofs& proofs() { return proofs_; }
  const PathProofs& proofs() const { return proofs_; }

  /// The queue sizes of connection `cid`; known for connection 0 at once, for the others when
  /// connection 0 was accepted.
  QueueSizes queue_sizes(std::uint16_t cid) const;

  /// All connections stand, and are proven: posts the receive and sends the info request.
  void start_exchange(QueuePair& control);
  /// The number of granted permits that are dealt; valid once connection 0 was accepted.
  std::uint16_t permits() const;
  /// The slots are dealt to the control connection and the lanes once the depth is known.
  /// Index 0 is the control lane; a lane may get none when the server grants very few permits.
  std::vector<std::uint16_t> slots_per_lane() const;

  bool is_memory() const { return options_.kind == wire::PathKind::memory; }
  /// The number of permits for connection 0 at a time: those of the control lane, and those
  /// of attach_reopening().
  std::uint16_t control_slots() const;

  /// Connected: gives a lane its chunks, and its queue pair the receives it needs.
  /// `index` is the path's among those of its session.
  void attach(ClientLane& lane, unsigned index, std::uint16_t cid, QueuePair& queue_pair);

  /// The same for a lane that has one permit, `slot`, and is the only one, on connection 0, while a
  /// new session is filled.
  void attach_reopening(ClientLane& lane, unsigned index, std::uint16_t slot,
                        QueuePair& queue_pair);

  /// The handler of arrivals on connection 0 other than heartbeats: a control lane.
  void set_control_handler(QueuePairHandler* handler) { control_handler_ = handler; }
  /// Tells the server that the session ends (it would wait for the client to come back).
  /// False: it was not said, because the path does not stand, or to this server.
  bool say_goodbye();
  /// Both sides know that requests are carried out once.
  bool exactly_once() const {
    return (accepted_.extension.features & wire::kFeatureExactlyOnce) != 0;
  }

  /// The server's latest access state of the path.
  wire::PathAccess access() const { return access_; }
  /// New requests may use it. A server that could not tell of the end of it forbids nothing.
  bool accessible() const { return access_ != wire::PathAccess::inaccessible || !tells_access(); }
  /// The server has changed its mind. True until acknowledge_access().
  bool access_noticed() const { return notice_.has_value(); }
  /// The notice has been acted on: tells the server.
  void acknowledge_access();
  /// The server wants memory back. True until acknowledge_recall().
  bool recalled() const { return recall_.has_value(); }
  /// Tells the server that it was heard.
  void acknowledge_recall();

  /// `traffic`: something arrived on any connection of the path since the last tick.
  Heartbeat::Verdict on_tick(Instant now, bool traffic);
  /// Is started when the path is connected, and measures after arrivals on connection 0.
  PathPulse& pulse() { return pulse_; }
  const PathPulse& pulse() const { return pulse_; }

  void close() { state_ = ClientPathState::closed; }
  ClientPathState state() const { return state_; }
  const wire::AcceptParameters& accepted() const { return accepted_; }

  [[nodiscard]] Complaint on_write_with_immediate(std::uint32_t immediate,
                                                  std::uint32_t bytes) override;
  [[nodiscard]] Complaint on_message(ConstBytes message,
                                     std::optional<std::uint32_t> immediate) override;

 private:
  bool tells_access() const {
    return (accepted_.extension.features & wire::kFeatureAccessNotice) != 0;
  }
  [[nodiscard]] Complaint on_access(std::uint32_t value);
  [[nodiscard]] Complaint on_recall(std::uint32_t count);
  bool answers_unread() const;
  ClientLane::Link link(QueuePair& queue_pair, std::size_t first, std::size_t count);
  std::uint32_t receive_bytes() const {
    return accepted_.new_rkey ? static_cast<std::uint32_t>(sizeof(wire::RkeyMessage)) : 0U;
  }

  ClientPathOptions options_;
  ClientPathState state_ = ClientPathState::connecting;
  wire::AcceptParameters accepted_;
  PathProofs proofs_;
  int refusal_ = 0;
  std::vector<wire::ChunkAddress> chunks_;
  QueuePair* control_ = nullptr;
  QueuePairHandler* control_handler_ = nullptr;
  PathPulse pulse_;
  wire::PathAccess access_ = wire::PathAccess::optimized;
  std::optional<wire::PathAccess> notice_;  ///< not acknowledged yet
  std::optional<std::uint32_t> recall_;     ///< likewise
  Ticket last_ack_ = 0;
};

}  // namespace rtrs
