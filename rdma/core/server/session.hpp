// SPDX-License-Identifier: BSD-3-Clause
// A session at the server: its paths, and its record of the requests that came on them.
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
  bool extension = true;                   ///< the client announced it, so it is answered
  std::uint32_t features = 0;              ///< of both sides.
  wire::Uuid uuid{};                       ///< the client's
  std::uint64_t session_epoch = 0;         ///< a random number of this session.
  std::uint64_t volatile_epoch = 0;        ///< another one when unflushed writes may be lost
  std::uint64_t server_id = 0;             ///< the same for all sessions of the server

  std::uint32_t chunk_size() const { return max_io_size + max_header_size; }
  std::uint64_t chunk_memory() const { return std::uint64_t{queue_depth} * chunk_size(); }
  bool exactly_once() const { return (features & wire::kFeatureExactlyOnce) != 0; }
  bool tells_access() const { return (features & wire::kFeatureAccessNotice) != 0; }
  bool has_memory_paths() const { return (features & wire::kFeatureMemoryPaths) != 0; }
};

/// Lives from the first accepted connection until it is over and every request has been finished.
///
/// It is over when its last path has closed. With kFeatureExactlyOnce it lingers then: it stays,
/// and a new path may join it, until the client says goodbye, or nobody has come for a while and
/// nothing executes.
///
/// Threads: one reactor.
/// Source:  docs/protocol.md, several paths, RTRS extension.
class ServerSession {
 public:
  ServerSession(ServerSessionOptions options, ServerHandler& handler);
  ~ServerSession();
  ServerSession(const ServerSession&) = delete;
  ServerSession& operator=(const ServerSession&) = delete;

  const ServerSessionOptions& options() const { return options_; }
  const std::vector<ServerPath*>& paths() const { return paths_; }

  /// The driver has closed a path.
  void on_path_closed(ServerPath& path);
  /// The server thinks so of all paths that came in by this listener (ServerPathOptions::entrance).
  void set_access(unsigned entrance, wire::PathAccess access);
  /// No path may join any more. The session ends with its last request.
  void end();
  /// Ends the memory path of this number; on_memory_path_down() tells when that has happened.
  /// False: there is none.
  bool revoke(const wire::Uuid& memory_path);
  /// Tells the client that memory is wanted back that its memory paths may use. It is told over
  /// one path after another until it has heard it. False: it has no memory paths.
  bool recall();
  /// Nobody came back while it lingered.
  void on_linger_expired();
  /// Ends a session that lingers and executes nothing, because another one wants its name or
  /// device.
  bool end_if_idle();

  bool over() const { return over_ || gone_; }
  bool gone() const { return gone_; }
  /// For requests: memory paths keep no session.
  bool has_live_path() const;
  unsigned connected_paths() const;
  /// Lingers, and nothing executes.
  bool idle() const { return !gone_ && lingers() && !has_live_path() && executing_ == 0; }
  /// The handler's list of open devices.
  std::vector<SessionItem> items();
  /// Requests that the handler has, and those with a delayed answer; on all paths.
  unsigned executing() const { return executing_; }

  std::function<void()> on_gone;       ///< called when gone() becomes true
  std::function<void()> on_lingering;  ///< the last path has closed, or it became idle afterwards

  /// Ends a delayed answer, see ServerPath::delay_answer.
  void answer(ServerRequest& request, int error);

  /// Requests of a client without generations wait while it has several paths. A copy that is sent
  /// again on one path may still lie unread on another, and must not be carried out behind newer
  /// writes. A reader of some calls read_and_judge().
  bool has_pending() const { return !pending_.empty(); }
  enum class Judged {
    yes,    ///< also when they have to wait for something else, or it is under way already
    later,  ///< requests came all the time: the caller comes back when others have had a turn
    no,     ///< `read_all` did not read all: the caller calls again
  };
  /// Reads until a whole round has brought no request, then judges those that wait. `read_all`
  /// looks at all connections of all paths; false: there may be more.
  Judged read_and_judge(const std::function<bool()>& read_all);
  /// Judges them at once.
  void judge_pending();

  /// The handler takes back memory that it gave to requests: see ServerRequest.
  void let_go(ConstBytes memory);

  const Repeats& repeats() const { return repeats_; }

  // For the handler and the driver.
  std::string name;
  std::string peer;
  Identity identity;  ///< of all connections
  Reactor* reactor = nullptr;
  void* context = nullptr;

 private:
  friend class ServerPath;
  friend struct ServerRequest;

  void join(ServerPath& path);
  void leave(ServerPath& path);
  void up();
  /// A request is complete: executes it, or attaches, answers or drops it (SlotVerdict).
  void take(ServerRequest& request, const wire::WriteTrailer& trailer);
  bool must_wait() const;
  bool copy_is_arriving(const ServerRequest& request) const;
  void forget_pending(const ServerRequest& request);
  /// True: it executes from now on, and the caller gives it to the handler. A caller with several
  /// judges all of them before.
  bool judge(ServerRequest& request, const wire::WriteTrailer& trailer);
  bool judge_write(ServerRequest& request, const wire::WriteTrailer& trailer);
  void wait_behind(ServerSlot& slot, ServerRequest& request, ServerRequest::State as);
  void finish(ServerRequest& request, int error);
  bool must_delay(const ServerRequest& request, int error) const;
  void tell(ServerRequest& waiting, int error);
  void tell_recall();
  void on_recall_heard(std::uint32_t count);
  void fence_all(const char* why, bool fault);
  bool ends_memory_paths();
  bool lingers() const;
  void check_gone();

  ServerSessionOptions options_;
  ServerHandler& handler_;
  std::vector<ServerPath*> paths_;  ///< also those that are closed, while requests execute in them
  std::vector<ServerSlot> slots_;   ///< one per permit
  std::vector<ServerRequest*> pending_;
  std::vector<ServerRequest*> judged_;  ///< by judge_pending(), and not with the handler yet
  bool reading_ = false;                ///< read_and_judge() is on the stack
  std::uint64_t requests_read_ = 0;     ///< on all paths
  std::uint64_t batch_ = 0;
  Repeats repeats_;
  std::uint32_t recalls_ = 0;        ///< so far
  std::uint32_t recalls_heard_ = 0;  ///< the newest that the client has acknowledged
  unsigned executing_ = 0;
  bool up_ = false;
  bool over_ = false;
  bool linger_expired_ = false;
  bool gone_ = false;
};

}  // namespace rtrs
