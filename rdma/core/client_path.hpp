// One path of a client: connects its connections in order, exchanges the infos, keeps the
// heartbeat.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rdma/core/client_lane.hpp"
#include "rdma/core/heartbeat.hpp"
#include "rdma/core/queue_pair.hpp"
#include "rdma/wire/handshake.hpp"
#include "rdma/wire/messages.hpp"

namespace rtrs {

/// connecting -> exchanging -> connected -> closed; any -> closed
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
  std::uint16_t io_connections = 1;  ///< beside connection 0
  std::uint32_t features = 0;
  Duration heartbeat_interval{};
  unsigned heartbeat_misses = 4;
  bool data_rides_with_reply = false;  ///< a property of the transport, see ClientLane::Link
  /// A server without the extension is Linux's: its heartbeat limits hold, and only with the
  /// extension do the data ride with the reply.
  bool may_be_linux = false;
};

/// The driver makes the connections this class asks for, tells what came of them and passes on what
/// arrives on connection 0; lanes get their links from here.
///
/// Threads: one at a time (the driver's background thread; the simulator).
/// Source:  docs/protocol.md, connecting, info exchange.
class ClientPath final : public QueuePairHandler {
 public:
  explicit ClientPath(ClientPathOptions options);

  std::uint16_t connection_count() const { return options_.io_connections + 1U; }
  /// What to send when connection `cid` is opened. Connections are opened in order, one after
  /// another.
  wire::ConnectRequest connect_request(std::uint16_t cid) const;
  /// The server's record for connection `cid`. A complaint ends the attempt; refusal() tells the
  /// server's errno if any.
  [[nodiscard]] Complaint on_answer(std::uint16_t cid, ConstBytes record);
  int refusal() const { return refusal_; }

  /// What connection `cid` will have to hold; known for connection 0 at once, for the others when
  /// connection 0 was accepted.
  QueueSizes queue_sizes(std::uint16_t cid) const;

  /// All connections stand: posts the receive and sends the info request.
  void start_exchange(QueuePair& control);
  /// The slots are dealt to the control connection and the lanes once the depth is known.
  /// Index 0 is the control lane; a lane may get none when the server grants very few permits.
  std::vector<std::uint16_t> slots_per_lane() const;

  /// Connected: gives a lane its chunks, and its queue pair the receives it needs.
  void attach(ClientLane& lane, std::uint16_t cid, QueuePair& queue_pair);

  /// The control lane's requests; arrivals on connection 0 are passed to it.
  void set_control_lane(ClientLane* lane) { control_lane_ = lane; }

  void start_heartbeat(Instant now) { heartbeat_.start(now); }
  /// `traffic`: something arrived on any connection of the path since the last tick.
  Heartbeat::Verdict on_tick(Instant now, bool traffic);
  Instant next_deadline() const { return heartbeat_.next_deadline(); }

  void close() { state_ = ClientPathState::closed; }
  ClientPathState state() const { return state_; }
  const wire::AcceptParameters& accepted() const { return accepted_; }

  [[nodiscard]] Complaint on_write_with_immediate(std::uint32_t immediate,
                                                  std::uint32_t bytes) override;
  [[nodiscard]] Complaint on_message(ConstBytes message,
                                     std::optional<std::uint32_t> immediate) override;

 private:
  std::uint32_t receive_bytes() const {
    return accepted_.new_rkey ? static_cast<std::uint32_t>(sizeof(wire::RkeyMessage)) : 0U;
  }

  ClientPathOptions options_;
  ClientPathState state_ = ClientPathState::connecting;
  wire::AcceptParameters accepted_;
  int refusal_ = 0;
  std::vector<wire::ChunkAddress> chunks_;
  QueuePair* control_ = nullptr;
  ClientLane* control_lane_ = nullptr;
  Heartbeat heartbeat_;
  Ticket last_ack_ = 0;
  bool heard_ = false;  ///< something came on connection 0
};

}  // namespace rtrs
