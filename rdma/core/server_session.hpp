// A session at the server: its chunks, the requests that execute in them, its path.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "rdma/core/heartbeat.hpp"
#include "rdma/core/server_request.hpp"
#include "rdma/wire/handshake.hpp"
#include "rdma/wire/messages.hpp"

namespace rtrs {

class Reactor;
class ServerPath;

struct ServerSessionOptions {
  std::uint16_t queue_depth = 256;
  std::uint32_t max_io_size = 256 * 1024;  ///< bytes
  std::uint32_t max_header_size = 4096;    ///< bytes
  /// Every chunk has a key of its own, which ends when a request arrives; its reply brings a new
  /// one.
  bool new_keys = false;
  bool extension = true;       ///< the client announced it, so it is answered
  std::uint32_t features = 0;  ///< of both sides
  std::uint64_t session_epoch = 0;
  Duration heartbeat_interval{};
  unsigned heartbeat_misses = 4;

  std::uint32_t chunk_size() const { return max_io_size + max_header_size; }
  std::uint64_t chunk_memory() const { return std::uint64_t{queue_depth} * chunk_size(); }
  wire::AcceptParameters accept_parameters() const;
};

/// Lives from the first accepted connection until its path is closed and every request has been
/// finished.
///
/// Threads: one reactor.
class ServerSession {
 public:
  ServerSession(ServerSessionOptions options, ServerHandler& handler);
  ~ServerSession();
  ServerSession(const ServerSession&) = delete;
  ServerSession& operator=(const ServerSession&) = delete;

  const ServerSessionOptions& options() const { return options_; }
  ServerPath& path() { return *path_; }
  void open_path(std::uint16_t cid_count);

  /// The chunk memory; given by the driver before the exchange can end, and kept until the session
  /// is gone.
  void set_chunks(MutableBytes chunks) { chunks_ = chunks; }
  MutableBytes chunks() const { return chunks_; }

  /// The path is closed. When nothing executes any more, the handler is told that the session is
  /// down and `gone()` is true.
  void on_path_closed();
  bool gone() const { return gone_; }
  /// Called when gone() becomes true.
  void on_gone(std::function<void()> callback) { on_gone_ = std::move(callback); }
  unsigned executing() const { return executing_; }

  /// Asked to call answer() a little later with an error of a write. Without it errors are answered
  /// at once.
  ///
  /// A Linux client before 6.12 takes a failed write for a successful one when it learns of the
  /// failure before its own memory registration ended. Source: docs/protocol.md, replies.
  std::function<void(ServerRequest&, int error)> delay_answer;
  void answer(ServerRequest& request, int error);

  // For the handler and the driver.
  std::string name;
  std::string peer;
  Reactor* reactor = nullptr;
  void* context = nullptr;

 private:
  friend class ServerPath;
  friend struct ServerRequest;

  void up();
  /// Judges the immediate of a request; afterwards its chunk is taken.
  [[nodiscard]] Complaint take(std::uint32_t immediate);
  [[nodiscard]] Complaint begin(std::uint16_t cid, std::uint32_t immediate);
  MutableBytes chunk(std::uint32_t buffer_id) const;
  void finish(ServerRequest& request, int error);
  void check_gone();

  ServerSessionOptions options_;
  ServerHandler& handler_;
  std::unique_ptr<ServerPath> path_;
  MutableBytes chunks_;
  std::vector<ServerRequest> requests_;  ///< one per chunk
  std::vector<std::byte> messages_;      ///< copies of the user messages, kMaxUserMessage each
  unsigned executing_ = 0;
  bool up_ = false;
  bool closed_ = false;
  bool gone_ = false;
  std::function<void()> on_gone_;
};

}  // namespace rtrs
