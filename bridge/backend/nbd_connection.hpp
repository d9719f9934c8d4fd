// SPDX-License-Identifier: BSD-3-Clause
// One connection to an NBD server, driven by one reactor through libnbd's asynchronous calls.
#pragma once

#include <atomic>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>

#include "bridge/backend/backend.hpp"
#include "bridge/backend/file_engine.hpp"
#include "bridge/backend/nbd_connect.hpp"
#include "rdma/transport/reactor.hpp"

namespace rnbd {

/// Of connections that serve requests.
inline constexpr std::chrono::seconds kNbdConnectTimeout{10};

/// The state that all connections to one export share.
struct NbdShared {
  std::string uri;
  BackendInfo info;
  /// Bytes that clients may use. Grows only while no client has the export open.
  std::atomic<std::uint64_t> size{0};
  std::atomic<std::uint64_t> told{0};  ///< bytes, as the server has told last
  /// The `life` in which `size` was told.
  std::atomic<std::uint32_t> sized_in_life{1};
  rtrs::Log log;
  bool native_fua = false;
  bool multi_conn = false;
  std::uint64_t max_payload = 0;  ///< bytes per read and write command
  /// The errno of the first flush that failed at the server, or 0. Any write may have been lost
  /// with it, so every later flush and FUA request must fail.
  std::atomic<int> flush_error{0};
  /// A connection ended while writes were under way. The server may still perform them, even over
  /// newer writes.
  std::atomic<bool> uncertain{false};
  /// Counts lost connections. Each may mean that the server was restarted and has lost its cache.
  std::atomic<std::uint32_t> life{1};
  std::chrono::nanoseconds patience{};  ///< with a server that owes replies
  std::mutex mutex;
  /// Connected when the backend was opened, or told that the export has grown. The first queue that
  /// connects takes it.
  NbdHandle first;
};

class NbdConnection;

/// A request in progress.
struct NbdIo {
  enum class Stage : std::uint8_t { data, flush };
  NbdConnection* connection = nullptr;
  BackendRequest* request = nullptr;
  rtrs::Reactor* origin = nullptr;  ///< the reactor that calls done()
  NbdIo* previous = nullptr;
  NbdIo* next = nullptr;
  std::uint64_t progress = 0;  ///< bytes done
  std::uint64_t piece = 0;     ///< bytes asked for, or told of as extents
  std::uint32_t appended = 0;  ///< extents
  int error = 0;
  Stage stage = Stage::data;
  bool in_flight = false;
};
static_assert(sizeof(NbdIo) <= sizeof(BackendRequest::scratch));

/// Alters the storage.
bool is_change(BackendOperation operation);

/// Doubly linked, because replies come in any order.
class NbdIoList {
 public:
  bool empty() const { return head_ == nullptr; }
  void push(NbdIo& io) {
    io.next = nullptr;
    io.previous = tail_;
    (tail_ != nullptr ? tail_->next : head_) = &io;
    tail_ = &io;
  }
  void remove(NbdIo& io) {
    (io.previous != nullptr ? io.previous->next : head_) = io.next;
    (io.next != nullptr ? io.next->previous : tail_) = io.previous;
  }
  template <class Function>
  void for_each(Function function) const {
    for (const NbdIo* io = head_; io != nullptr; io = io->next) function(*io);
  }
  NbdIo& pop() {
    NbdIo& first = *head_;
    remove(first);
    return first;
  }

 private:
  NbdIo* head_ = nullptr;
  NbdIo* tail_ = nullptr;
};

/// Connects at the first request, without blocking its reactor. If that fails, the next request
/// tries again. A connection that was lost later is never replaced, because the lost writes are
/// unknown.
///
/// Threads: its home reactor's; start() is any thread's.
class NbdConnection final : public std::enable_shared_from_this<NbdConnection>,
                            private rtrs::Deferred {
 public:
  NbdConnection(std::shared_ptr<NbdShared> shared, rtrs::Reactor& home);
  ~NbdConnection() override;

  rtrs::Reactor& home() { return home_; }
  /// True when the connection was lost: every request fails from now on. Threads: any.
  bool lost() const { return lost_; }
  /// True when the export has grown since: the server serves this connection as if it had not.
  /// Threads: any.
  bool outgrown() const { return shared_->size > size_; }
  /// Bytes that its requests may use. Threads: any.
  std::uint64_t size() const { return size_; }
  /// Starts a request that has an NbdIo in its `scratch`.
  void start(NbdIo& io);

 private:
  enum class State : std::uint8_t { idle, connecting, ready, lost };
  struct Connecting : FileOperation {
    NbdConnection* connection = nullptr;
    tl::expected<NbdHandle, Failure> result;
  };

  void accept(NbdIo& io);
  void connect();
  void on_connected();
  bool keeps_abilities(nbd_handle* h) const;
  void use(NbdHandle handle);
  bool is_cut(const BackendRequest& request) const;
  void issue(NbdIo& io);
  std::int64_t send(NbdIo& io);
  std::uint64_t max_piece(const NbdIo& io) const;
  std::int64_t send_piece(NbdIo& io);
  void to_replied(NbdIo& io, int error);
  void on_reply(NbdIo& io);
  void on_error(NbdIo& io);
  void finish_durably(NbdIo& io);
  void finish(NbdIo& io, int error);
  void fail_all(NbdIoList& list);
  void lose(const std::string& why);
  void note_cut(const NbdIo& io);
  void log(const std::string& text, rtrs::LogLevel level = rtrs::LogLevel::error) const;

  void run_deferred() override;
  void arm();
  void on_ready(bool reading);
  static void keep_alive(int descriptor);
  void watch();
  void look();
  void stand_still();

  static int on_completion(void* user, int* error);
  static int on_extents(void* user, const char* context, std::uint64_t offset,
                        NbdExtentWord* entries, std::size_t count, int* error);

  std::shared_ptr<NbdShared> shared_;
  const std::uint64_t size_;  ///< bytes
  std::uint64_t reach_ = 0;   ///< bytes, as the server told this connection; size_ at most
  std::uint64_t max_range_ = kMaxCompactRange;  ///< bytes per zero, trim and block status command
  rtrs::Reactor& home_;
  State state_ = State::idle;
  std::atomic<bool> lost_{false};  ///< state_ == lost
  bool complained_ = false;        ///< that it cannot connect
  std::unique_ptr<FileEngine> threads_;
  Connecting connecting_;
  NbdHandle handle_;
  boost::asio::posix::stream_descriptor descriptor_;
  boost::asio::steady_timer stall_timer_;
  NbdIoList waiting_;    ///< for the connection
  NbdIoList in_flight_;  ///< at the server
  NbdIoList replied_;    ///< libnbd is still on the stack
  std::uint64_t replies_ = 0;
  std::uint64_t changes_ = 0;                ///< of those at the server
  std::uint64_t cut_changes_ = 0;            ///< of unknown outcome
  std::uint64_t replies_then_ = 0;           ///< at the last look
  std::chrono::nanoseconds silent_{};        ///< for so long
  std::chrono::nanoseconds silence_told_{};  ///< as last reported; 0: never
  bool shutting_down_ = false;               ///< the server says so
  bool read_armed_ = false;
  bool write_armed_ = false;
  bool watching_ = false;
};

}  // namespace rnbd
