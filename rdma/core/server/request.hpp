// SPDX-License-Identifier: BSD-3-Clause
// The interface between the server core and the protocol above it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rdma/core/queue_pair.hpp"
#include "rdma/core/regions.hpp"
#include "rdma/core/time.hpp"
#include "rdma/wire/handshake.hpp"

namespace rtrs {

class ServerPath;
class ServerSession;

/// One request that executes in its chunk. Lives in its path until finish() was called, also when
/// the path closes before.
///
/// Threads: the reactor that owns the session.
struct ServerRequest {
  ConstBytes message;  ///< user message, already copied out of the shared chunk
  MutableBytes data;  ///< a write: the client's data in the chunk (it may still change it); a read:
                      ///< room for the answer, all of which is sent on success
  /// A read: what is sent instead of `data`, which says how much that is. Must stay until
  /// let_go(session, memory).
  const std::byte* source = nullptr;
  bool is_read = false;
  ServerSession* session = nullptr;

  /// True: `source` may be set.
  bool may_send_from_anywhere() const;
  /// Says that the next request on this connection probably brings data for exactly this memory,
  /// with a message as long as this one's. Where the transport can it receives them there, and that
  /// request has them as its `data`. Otherwise they are in the chunk as ever, and in the memory is
  /// something else. The memory must stay until that request or let_go(session, memory).
  void expect_next(MutableBytes memory);

  /// Ends the request. Exactly once, on the session's reactor. `error` is a positive errno, 0 =
  /// success.
  void finish(int error);

  // Used by the core only.
  enum class State : std::uint8_t {
    free,       ///< the chunk is the client's
    arrived,    ///< its immediate is here.
    starved,    ///< a read that waits for memory
    pending,    ///< read, and waits until the session's other paths have been read, too
    executing,  ///< the handler has it, or its answer is delayed.
    attached,   ///< waits for the end of the same request, which came on another path.
    following,  ///< waits for the end of an older one with its permit, then it is judged again
    ended,      ///< was attached; its answer is delayed
  };
  State state = State::free;
  std::uint16_t cid = 0;
  std::uint32_t buffer_id = 0;
  ServerPath* path = nullptr;
  ServerRequest* next = nullptr;  ///< attached, following: the next that waits for the same
  std::uint64_t batch = 0;        ///< judged together with the others of this number
  RemoteMemory answer_to;
  std::uint64_t answer = 0;  ///< the Ticket of the newest answer from its chunk
  /// The cid of the connection that writes to its chunk, or has, for the next request, and 1; 0:
  /// none does. Of a path with an account only.
  std::uint32_t writer = 0;
  bool need_invalidate = false;
};

/// Something that a session has open: "disk0", "read-write".
struct SessionItem {
  std::string name;
  std::string how;
  unsigned requests = 0;    ///< that execute
  std::uint64_t ended = 0;  ///< since it was opened
  Duration oldest{};        ///< how long one that executes has done so, as far as it is known
  unsigned waiting = 0;     ///< requests that a limit holds back
};

/// Counts requests that came more than once to a session.
struct Repeats {
  std::uint64_t attached = 0;  ///< answered together with the first one
  std::uint64_t answered = 0;  ///< answered from memory
  std::uint64_t dropped = 0;   ///< older than the newest answered one

  Repeats& operator+=(const Repeats& more) {
    attached += more.attached;
    answered += more.answered;
    dropped += more.dropped;
    return *this;
  }
};

/// The protocol above RTRS. All calls come on the session's reactor; nothing may block.
class ServerHandler {
 public:
  /// The first path of a session is up. A non-null result belongs to the handler and is found again
  /// in ServerSession::context(); it stays until on_session_down().
  virtual void* on_session_up(ServerSession& session) = 0;
  /// Must lead to exactly one request.finish(), now or later.
  virtual void on_request(ServerSession& session, ServerRequest& request) = 0;
  /// A path of a session that is up has come, or has closed.
  virtual void on_paths_changed(ServerSession& /*session*/) {}
  /// A memory path has come: its client may use the memory exposed there until
  /// on_memory_path_down().
  virtual void on_memory_path_up(ServerSession& /*session*/, const wire::Uuid& /*path*/,
                                 Regions& /*regions*/) {}
  /// A memory path has closed, and the memory exposed there is neither read nor written any more.
  /// It comes before on_session_down(), always.
  virtual void on_memory_path_down(ServerSession& /*session*/, const wire::Uuid& /*path*/) {}
  /// The session is over and every request has been finished.
  virtual void on_session_down(ServerSession& session) = 0;
  /// The open devices of a session that is up, for people.
  virtual std::vector<SessionItem> items(ServerSession& /*session*/) { return {}; }

 protected:
  ~ServerHandler() = default;
};

}  // namespace rtrs
