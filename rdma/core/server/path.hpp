// SPDX-License-Identifier: BSD-3-Clause
// One path at the server: its connections, the info exchange, the heartbeat, its chunks with the
// requests in them, the replies.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rdma/core/heartbeat.hpp"
#include "rdma/core/server/path_chunks.hpp"
#include "rdma/core/server/path_loan.hpp"
#include "rdma/core/server/path_notices.hpp"
#include "rdma/core/server/path_proofs.hpp"
#include "rdma/core/server/session.hpp"

namespace rtrs {

/// connecting -> connected -> closed; connecting -> closed
enum class ServerPathState : std::uint8_t {
  connecting,  ///< connections arrive; the info request is awaited
  connected,   ///< requests are served
  closed,      ///< nothing is sent any more; final
};

/// The reason why a path is not let in after its handshake.
struct PathRefusal {
  Complaint why = nullptr;  ///< null: it is in
  int error = 0;            ///< an errno for the client; 0: its connections are closed
};

/// The owner of a path, which decides about it or performs what it asks for, at once.
class ServerPathOwner : public PathLoan::Owner {
 public:
  /// Asked when all connections are there and the client has told its session name. Nothing that
  /// concerns others happens before.
  virtual PathRefusal admit(std::string_view name) = 0;
  /// Called before the info response: must have given the path its chunks. False = no memory.
  virtual bool provide_chunks() = 0;
  /// The path serves from now on; the info response has not left yet.
  virtual void on_connected() = 0;
  /// The session has closed the path: its connections must be closed, at once or when the driver is
  /// back from QueuePair::progress(). `fault`: the peer broke a rule.
  virtual void on_fenced(Complaint why, bool fault) = 0;
  /// The driver has closed the path, but requests still execute in `held` bytes of its chunks.
  /// Storage that hangs may take for ever, so the memory of the `unused` parts may be given back.
  virtual void on_unused(std::span<const MutableBytes> unused, std::uint64_t held) = 0;
  // Calls for a path with an account only:
  /// These parts of the memory hold nothing any more, and may be given back for now.
  virtual void on_spare(std::span<const MutableBytes> /*parts*/) {}
  /// Requests have begun to wait for memory: call ServerPath::show_life() after each
  /// ServerPath::sign_interval() while ServerPath::starves().
  virtual void on_starved() {}
  /// There is memory, or others need some: call ServerPath::on_memory() soon. Any thread.
  void on_memory_news() override {}
  /// The path is closed and nothing executes in its chunks: driver and memory may go, from a later
  /// event.
  virtual void on_gone() = 0;
  /// A write of a client without the extension has failed: must call ServerSession::answer() with
  /// the error, a little later.
  virtual void delay_answer(ServerRequest& request, int error) = 0;

 protected:
  ~ServerPathOwner() = default;
};

struct ServerPathOptions {
  std::uint16_t cid_count = 1;
  wire::PathKind kind = wire::PathKind::requests;
  wire::Uuid uuid{};
  /// Every chunk has a key of its own, which ends when a request arrives; its reply brings a new
  /// one.
  bool new_keys = false;
  wire::PathAccess access = wire::PathAccess::optimized;  ///< told when it is accepted
  unsigned entrance = 0;  ///< the server's own number of the listener that it came in by
  Duration heartbeat_interval = std::chrono::milliseconds{500};
  unsigned heartbeat_misses = 4;
  /// The keys for the proof of each connection; null: no proof is needed.
  std::shared_ptr<auth::ServerKeys> keys = nullptr;
  /// The lender of memory that requests use beyond `floor`. Null: the path has all of its memory.
  MemoryAccount* account = nullptr;
  std::uint64_t floor = 0;  ///< bytes
};

/// Belongs to its session from construction to destruction, which must wait for
/// ServerPathOwner::on_gone(): requests that execute in its chunks outlive its connections.
///
/// Threads: the session's reactor.
/// Source:  docs/protocol.md, info exchange, requests, replies, heartbeats.
class ServerPath {
 public:
  ServerPath(ServerSession& session, ServerPathOwner& owner, ServerPathOptions options);
  ~ServerPath();
  ServerPath(const ServerPath&) = delete;
  ServerPath& operator=(const ServerPath&) = delete;

  const ServerPathOptions& options() const { return options_; }
  wire::AcceptParameters accept_parameters() const;
  /// The queue sizes of each of its connections.
  QueueSizes queue_sizes() const;
  /// A connection was accepted for the given request: posts the receives that it needs. The result
  /// handles its arrivals.
  QueuePairHandler& add(std::uint16_t cid, QueuePair& queue_pair,
                        const wire::ConnectRequest& request = {});
  /// True: the path carries no requests, and has no chunks.
  bool is_memory() const { return options_.kind == wire::PathKind::memory; }
  /// The regions of a memory path; the driver gives them before the exchange can end.
  void set_regions(Regions* regions) { regions_ = regions; }
  bool complete() const { return present_ == connections_.size(); }
  /// The proofs that the connections may owe of their user.
  const ServerPathProofs& proofs() const { return proofs_; }

  /// The chunk memory; given by the owner before the exchange can end, and kept until on_gone().
  void set_chunks(MutableBytes chunks);

  /// The refusal of a path whose client was told so and shall leave; null: there is none.
  Complaint turned_down() const { return turned_down_; }

  /// Changes the access state of the path. A client that knows notices is told, as soon as it has
  /// acknowledged the last one.
  void set_access(wire::PathAccess access);
  const PathNotices& notices() const { return notices_; }

  void start_heartbeat(Instant now) { heartbeat_.start(now); }
  Heartbeat::Verdict on_tick(Instant now);
  /// Requests wait for memory.
  bool starves() const { return !starving_.empty(); }
  /// The next write of the connection waits for memory: it must not be read.
  bool starves(std::uint16_t cid) const { return connections_[cid].awaits_room; }
  /// True: on_memory() is to be called when requests have ended and their answers are sent.
  bool minds_memory() const { return loan_.asked(); }
  /// Lets go on what has waited for memory that is there now, and gives back what others need. The
  /// driver then reads the connections that do not starve any more.
  void on_memory();
  void show_life();
  Duration sign_interval() const;
  const PathLoan& loan() const { return loan_; }
  /// Bytes in chunks with a request, or with data that are not sent yet, without messages.
  std::uint64_t loan_in_use() const;
  /// Likewise: bytes that the first one of those that wait needs.
  std::uint64_t starving_for() const;
  /// Nothing has come over the path in the last whole interval.
  bool silent() const { return heartbeat_.missed() > 1; }

  /// The queue pairs are no longer used from here on; the driver closes them, and calls
  /// ServerSession::on_path_closed().
  void close();
  ServerPathState state() const { return state_; }
  /// Requests without a posted reply.
  unsigned unanswered() const { return unanswered_; }
  /// The number of requests that came over the path so far.
  std::uint64_t requests() const { return begun_; }

 private:
  friend class ServerSession;
  friend struct ServerRequest;

  /// The place for the data of a connection's next request, if they are as it was expected.
  struct Detour {
    MutableBytes memory;      ///< empty: into their chunk
    std::size_t message = 0;  ///< bytes between them and the header
    bool under_way = false;
  };

  class Connection final : public QueuePairHandler {
   public:
    ServerPath* path = nullptr;
    QueuePair* queue_pair = nullptr;
    std::uint16_t cid = 0;
    Detour next;
    Ticket last_answer = 0;
    bool awaits_room = false;  ///< memory for the next write
    Ticket last_sign = 0;      ///< of life, meanwhile

    using QueuePairHandler::ask_for_room;
    Room room_for(std::uint64_t address, std::uint32_t length) override;
    [[nodiscard]] Complaint on_write_with_immediate(std::uint32_t immediate,
                                                    std::uint32_t bytes) override;
    MutableBytes detour(std::uint64_t address, std::uint32_t length,
                        std::uint32_t immediate) override;
    /// The data of the request that begins now, if they have gone elsewhere.
    MutableBytes take_detour();
    void end_detour();
    [[nodiscard]] Complaint on_message(ConstBytes message,
                                       std::optional<std::uint32_t> immediate) override;
    [[nodiscard]] Complaint on_revoked(std::uint32_t window) override;
  };

  // The exchange
  [[nodiscard]] Complaint on_proof(std::uint16_t cid, ConstBytes message);
  [[nodiscard]] Complaint on_info_request(ConstBytes message);
  [[nodiscard]] Complaint take_in(const std::string& name);
  [[nodiscard]] Complaint turn_down(const PathRefusal& refusal);
  [[nodiscard]] Complaint serve(const std::string& name);
  [[nodiscard]] Complaint serve_memory_path();
  std::vector<wire::Descriptor> expose_chunks();
  wire::Descriptor expose_chunk(QueuePair& queue_pair, std::uint32_t buffer_id);

  void send_access();
  /// True: the path serves requests, and its client has heard each recall that was sent here.
  bool may_recall() const;
  void send_recall(std::uint32_t count);

  // Requests: path_requests.cpp
  [[nodiscard]] Complaint on_request(Connection& connection, std::uint32_t immediate);
  [[nodiscard]] Complaint begin(std::uint16_t cid, std::uint32_t immediate);
  Ticket answer(QueuePair& queue_pair, std::uint32_t buffer_id, std::uint32_t immediate);
  void reply(const ServerRequest& request, int error);
  /// Replies if anybody is there to hear it; the chunk is free.
  void end(ServerRequest& request, int error);
  void free(ServerRequest& request);
  /// The chunk is free, and nothing is sent.
  void drop(ServerRequest& request);

  // Memory of the handler
  void expect_next(const ServerRequest& request, MutableBytes memory);
  void let_go(ConstBytes memory);

  // Memory that is lent: path_memory.cpp
  /// Bytes of a chunk that a connection or a read is about to use.
  struct Use {
    std::uint32_t chunk = 0;
    std::uint32_t begin = 0;
    std::uint32_t length = 0;
    Connection* connection = nullptr;
    ServerRequest* request = nullptr;

    std::uint64_t end() const { return std::uint64_t{begin} + length; }
  };
  std::uint64_t lacks(const Use& use) const;
  bool have_room(const Use& use);
  void await_room();
  bool claim(const Use& use);
  bool has_room_to_answer(ServerRequest& request) {
    return request.data.size() <= QueuePairHandler::kAlwaysRoom || find_room_to_answer(request);
  }
  bool find_room_to_answer(ServerRequest& request);
  bool is_idle(std::uint32_t chunk) const;
  MutableBytes forget(std::uint32_t chunk);
  void clear(std::uint32_t chunk);
  void reclaim(std::uint64_t bytes);
  void settle();
  void give_back_loan();
  void give_back_when_idle(Instant now);
  void stop_starving();

  // For the session
  void fence(const char* why, bool fault);
  void release();
  void give_back(const ServerRequest& ended);
  void check_gone();

  ServerSession& session_;
  ServerPathOwner& owner_;
  ServerPathOptions options_;
  ServerPathState state_ = ServerPathState::connecting;
  PathNotices notices_;
  Ticket max_unsent_;  ///< answers that may wait for the client to read them
  std::vector<Connection> connections_;
  std::size_t present_ = 0;
  ServerPathProofs proofs_;
  std::string told_name_;  ///< the session's, until all connections have proven their user
  Complaint turned_down_ = nullptr;
  Regions* regions_ = nullptr;
  bool told_of_memory_ = false;  ///< the handler knows of the path
  PathChunks chunks_;
  PathLoan loan_;
  std::vector<Use> starving_;  ///< oldest first
  std::optional<Instant> idle_since_;
  std::uint64_t begun_before_ = 0;       ///< requests, at the last tick
  bool has_spare_ = false;               ///< requests have come since all memory was given back
  std::vector<ServerRequest> requests_;  ///< one per chunk, once connected
  std::vector<std::byte> messages_;  ///< copies of the user messages, wire::kMaxUserMessage each
  unsigned unanswered_ = 0;
  std::uint64_t begun_ = 0;              ///< requests so far
  unsigned executing_ = 0;               ///< the handler has them, or their answer is delayed
  std::vector<std::uint32_t> revoking_;  ///< new keys: the immediate of each chunk's request
  Heartbeat heartbeat_;
  bool heard_ = false;
  bool released_ = false;  ///< the driver has closed it
  bool gone_ = false;
};

}  // namespace rtrs
