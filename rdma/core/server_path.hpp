// One path at the server: its connections, the info exchange, the heartbeat, the replies.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "rdma/core/heartbeat.hpp"
#include "rdma/core/server_session.hpp"

namespace rtrs {

/// connecting -> connected -> closed; connecting -> closed
enum class ServerPathState : std::uint8_t {
  connecting,  ///< connections arrive; the info request is awaited
  connected,   ///< requests are served
  closed,      ///< nothing is sent any more; final
};

/// Threads: the session's reactor.
/// Source:  docs/protocol.md, info exchange, requests, replies, heartbeats.
class ServerPath {
 public:
  ServerPath(ServerSession& session, std::uint16_t cid_count);

  /// What each of its connections will have to hold.
  QueueSizes queue_sizes() const;
  /// A connection was accepted: posts what it must receive. The result handles its arrivals.
  QueuePairHandler& add(std::uint16_t cid, QueuePair& queue_pair);
  bool complete() const { return present_ == connections_.size(); }

  /// Asked when the client tells its session name: false refuses it.
  std::function<bool(std::string_view)> claim_name;
  /// Called before the info response: must have given the session its chunks. False = no memory.
  std::function<bool()> provide_chunks;

  void start_heartbeat(Instant now) { heartbeat_.start(now); }
  Heartbeat::Verdict on_tick(Instant now);

  /// The queue pairs are no longer used from here on; the driver closes them.
  void close();
  ServerPathState state() const { return state_; }

 private:
  friend class ServerSession;

  class Connection final : public QueuePairHandler {
   public:
    ServerPath* path = nullptr;
    QueuePair* queue_pair = nullptr;
    std::uint16_t cid = 0;
    Ticket last_answer = 0;

    [[nodiscard]] Complaint on_write_with_immediate(std::uint32_t immediate,
                                                    std::uint32_t bytes) override;
    [[nodiscard]] Complaint on_message(ConstBytes message,
                                       std::optional<std::uint32_t> immediate) override;
    [[nodiscard]] Complaint on_revoked(std::uint32_t window) override;
  };

  [[nodiscard]] Complaint on_info_request(ConstBytes message);
  [[nodiscard]] Complaint on_request(Connection& connection, std::uint32_t immediate);
  std::vector<wire::Descriptor> expose_chunks();
  wire::Descriptor expose_chunk(QueuePair& queue_pair, std::uint32_t buffer_id);
  Ticket max_unsent() const;
  Ticket answer(QueuePair& queue_pair, std::uint32_t buffer_id, std::uint32_t immediate);
  void reply(const ServerRequest& request, int error);

  ServerSession& session_;
  ServerPathState state_ = ServerPathState::connecting;
  std::vector<Connection> connections_;
  std::size_t present_ = 0;
  std::vector<std::uint32_t> revoking_;  ///< new keys: the immediate of each chunk's request
  Heartbeat heartbeat_;
  bool heard_ = false;
};

}  // namespace rtrs
