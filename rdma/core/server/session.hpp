// SPDX-License-Identifier: BSD-3-Clause
// A session at the server: its paths, and a record of the writes that came on them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "rdma/core/identity.hpp"
#include "rdma/core/server/request.hpp"
#include "rdma/core/server/slot.hpp"
#include "rdma/core/time.hpp"
#include "rdma/wire/handshake.hpp"
#include "rdma/wire/messages.hpp"

namespace rtrs {

class Reactor;
class ServerPath;

/// The properties that all paths of a session share.
struct ServerSessionOptions {
  std::uint16_t queue_depth = 256;
  std::uint32_t max_io_size = 256 * 1024;  ///< bytes
  std::uint32_t max_header_size = 4096;    ///< bytes
  bool extension = true;                   ///< the client has announced it
  std::uint32_t features = 0;              ///< those that both sides have
  wire::Uuid uuid{};                       ///< the client's
  std::uint64_t session_epoch = 0;         ///< a random number of this session
  std::uint64_t volatile_epoch = 0;        ///< changes when unflushed writes may be lost
  std::uint64_t server_id = 0;             ///< the same for all sessions of the server

  std::uint32_t chunk_size() const { return max_io_size + max_header_size; }
  std::uint64_t chunk_memory() const { return std::uint64_t{queue_depth} * chunk_size(); }
  bool exactly_once() const { return (features & wire::kFeatureExactlyOnce) != 0; }
  bool tells_access() const { return (features & wire::kFeatureAccessNotice) != 0; }
  bool races() const { return exactly_once() && (features & wire::kFeatureRaces) != 0; }
  bool has_memory_paths() const { return (features & wire::kFeatureMemoryPaths) != 0; }
};

/// The owner of a session: its machine. It may call the session before it returns.
class ServerSessionOwner {
 public:
  /// The last path has closed, or the session has become idle after that.
  virtual void on_lingering() = 0;
  /// gone() has become true.
  virtual void on_gone() = 0;

 protected:
  ~ServerSessionOwner() = default;
};

/// Exists from its first accepted connection until it is over and every request has been finished.
///
/// It is over when its last path has closed. With kFeatureExactlyOnce it first lingers: it stays,
/// and a new path may join it. It is over when the client says goodbye, or when no path has come
/// for a while and nothing executes.
///
/// Threads: one reactor.
/// Source:  docs/protocol.md, several paths, RTRS extension.
class ServerSession {
 public:
  ServerSession(ServerSessionOptions options, ServerHandler& handler, ServerSessionOwner& owner);
  ~ServerSession();
  ServerSession(const ServerSession&) = delete;
  ServerSession& operator=(const ServerSession&) = delete;

  const ServerSessionOptions& options() const { return options_; }
  const std::vector<ServerPath*>& paths() const { return paths_; }

  /// The driver has closed a path.
  void on_path_closed(ServerPath& path);
  /// Sets the access state of all paths from this listener (ServerPathOptions::entrance).
  void set_access(unsigned entrance, wire::PathAccess access);
  /// No path may join any more. The session ends with its last request.
  void end();
  /// Ends the memory path with this UUID; on_memory_path_down() follows when that has happened.
  /// False: there is none.
  bool revoke(const wire::Uuid& memory_path);
  /// Asks the client to give back memory that its memory paths may use. Asks over one path at a
  /// time, until an answer comes. False: the session cannot have memory paths.
  bool recall();
  /// The time to linger is over, and no path has come.
  void on_linger_expired();
  /// Ends the session if it is idle(), because another one wants its name or device. False: it is
  /// not.
  bool end_if_idle();

  /// No path may join any more.
  bool over() const { return over_ || gone_; }
  /// The handler knows it.
  bool is_up() const { return up_; }
  /// True: the session is over, every request has been finished, and no memory path is left.
  bool gone() const { return gone_; }
  /// True: a path keeps the session. Memory paths do not.
  bool has_live_path() const;
  /// The number of paths that serve requests.
  unsigned connected_paths() const;
  /// True: the session lingers, and nothing executes.
  bool idle() const { return !gone_ && lingers() && !has_live_path() && executing_ == 0; }
  /// The handler's list of open devices.
  std::vector<SessionItem> items();
  /// The number of requests that the handler has, or whose answer is delayed, on all paths.
  unsigned executing() const { return executing_; }

  /// Ends a delayed answer, see ServerPathOwner::delay_answer().
  void answer(ServerRequest& request, int error);

  /// True: requests wait to be judged. Those of a client without generations do, while it has
  /// several paths. It may have sent a copy again on one path while the first lies unread on
  /// another, and this one must not be carried out after newer writes. So the reader of a path
  /// calls read_and_judge() afterwards.
  bool has_pending() const { return !pending_.empty(); }
  enum class Judged {
    yes,    ///< all, or all that can be; also if this is under way already
    later,  ///< none, as new requests came each time: call again when other sessions had a turn
    no,     ///< none, as `read_all` did not read all: call again
  };
  /// Reads all paths until a whole round has brought no request, then judges the requests that
  /// wait. `read_all` reads all connections of all paths; its false: there may be more.
  Judged read_and_judge(const std::function<bool()>& read_all);
  /// Judges them without reading.
  void judge_pending();

  /// Takes back memory that the handler gave to requests: ServerRequest::source, expect_next().
  void let_go(ConstBytes memory);

  const Repeats& repeats() const { return repeats_; }

  // For the handler and the driver.
  std::string name;
  std::string peer;
  Identity identity;  ///< of the first connection; all others have proven the same user
  Reactor* reactor = nullptr;
  void* context = nullptr;

 private:
  friend class ServerPath;
  friend struct ServerRequest;

  void join(ServerPath& path);
  void leave(ServerPath& path);
  void up();
  /// Takes a request that is complete, and judges it now or later.
  void take(ServerRequest& request, const wire::WriteTrailer& trailer);
  bool must_wait() const;
  bool copy_is_arriving(const ServerRequest& request) const;
  void forget_pending(const ServerRequest& request);
  /// Decides on a request (SlotVerdict). True: it executes from now on, and the caller must give it
  /// to the handler. A caller with several requests judges all of them first.
  bool judge(ServerRequest& request, const wire::WriteTrailer& trailer);
  bool judge_write(ServerRequest& request, const wire::WriteTrailer& trailer);
  void wait_behind(ServerSlot& slot, ServerRequest& request, ServerRequest::State as);
  void finish(ServerRequest& request, int error);
  bool must_delay(const ServerRequest& request, int error) const;
  void answer_copy(ServerRequest& waiting, int error);
  void send_recall();
  void on_recall_heard(std::uint32_t count);
  void fence_all(const char* why, bool fault);
  bool ends_memory_paths();
  bool lingers() const;
  void check_gone();

  ServerSessionOptions options_;
  ServerHandler& handler_;
  ServerSessionOwner& owner_;
  std::vector<ServerPath*> paths_;  ///< also those that are closed, while requests execute in them
  std::vector<ServerSlot> slots_;   ///< one per permit
  std::vector<ServerRequest*> pending_;  ///< wait to be judged; null: its path was closed
  std::vector<ServerRequest*> judged_;   ///< by judge_pending(), and not with the handler yet
  bool reading_ = false;                 ///< read_and_judge() is on the stack
  std::uint64_t requests_read_ = 0;      ///< on all paths
  std::uint64_t batch_ = 0;              ///< of the requests that were judged last
  Repeats repeats_;
  std::uint32_t recalls_ = 0;        ///< the number of recalls so far
  std::uint32_t recalls_heard_ = 0;  ///< the newest that the client has acknowledged
  unsigned executing_ = 0;
  bool up_ = false;
  bool over_ = false;
  bool linger_expired_ = false;
  bool gone_ = false;
};

}  // namespace rtrs
