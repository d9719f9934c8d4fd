// SPDX-License-Identifier: BSD-3-Clause
// A C++20 interface on top of rtrs.h, header only. Objects own their handles, data are spans,
// handlers are callables, and functions return a result or an error.
//
//   auto client = rtrs::Client::connect("rtrs+tcp://127.0.0.1:4321");
//   auto length = client->call("hello", rtrs::bytes(data), rtrs::room(answer));
#pragma once

#include <rtrs.h>
#include <signal.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace rtrs {
inline namespace v0 {

/// Why something failed: an errno for programs, a sentence for people.
struct Error {
  int code = 0;
  std::string text;
};

/// A value, or the error in its place.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_{std::move(value)} {}      // NOLINT: implicit on purpose
  Result(Error error) : error_{std::move(error)} {}  // NOLINT: implicit on purpose

  explicit operator bool() const { return value_.has_value(); }
  T& operator*() & { return *value_; }
  T&& operator*() && { return std::move(*value_); }
  const T& operator*() const& { return *value_; }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }
  /// 0 when there is a value.
  int code() const { return error_.code; }
  const Error& error() const { return error_; }

 private:
  std::optional<T> value_;
  Error error_;
};

using ConstBytes = std::span<const std::byte>;
using Bytes = std::span<std::byte>;

/// The bytes of anything contiguous: a string, a vector, an array.
template <class Range>
ConstBytes bytes(const Range& range) {
  return std::as_bytes(std::span{std::data(range), std::size(range)});
}
/// The bytes of anything contiguous, as memory for an answer.
template <class Range>
Bytes room(Range& range) {
  return std::as_writable_bytes(std::span{std::data(range), std::size(range)});
}
/// The characters of bytes.
inline std::string_view text(ConstBytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// An answer whose length the caller did not know before. It owns its memory.
class Answer {
 public:
  Answer(void* memory, std::size_t length)
      : memory_{static_cast<std::byte*>(memory), rtrs_free}, length_{length} {}

  ConstBytes bytes() const { return {memory_.get(), length_}; }
  std::string_view text() const { return rtrs::text(bytes()); }

 private:
  std::unique_ptr<std::byte[], void (*)(void*)> memory_;
  std::size_t length_;
};
/// The longest answer that Client::ask() takes unless its caller sets another limit, in bytes.
inline constexpr std::size_t kMostAnswer = 1U << 20;

/// Options whose `size` is set, and whose other fields are 0.
template <class Options>
Options defaults() {
  Options options{};
  options.size = sizeof(options);
  return options;
}
using ClientOptions = rtrs_client_options;
using ServerOptions = rtrs_server_options;

/// How long ~Server() waits for running requests, in milliseconds.
inline constexpr unsigned kDrainMs = 2000;

/// A session with a server. In a child of fork() its parent's clients, servers and bricks fail with
/// RTRS_FORKED, and may be destroyed. One that was moved away fails with EINVAL. Threads: any; end
/// calls of other threads with shutdown() before the destructor.
class Client {
 public:
  /// The result of an operation: an errno, and the length of its answer.
  using Done = std::function<void(int error, std::size_t answer_length)>;

  static Result<Client> connect(const char* uri,
                                const ClientOptions& options = defaults<ClientOptions>()) {
    rtrs_error error{};
    rtrs_client* client = rtrs_connect(uri, &options, &error);
    if (client == nullptr) return Error{error.code, error.text};
    return Client{client};
  }

  /// Sends a request and waits; returns the length of the answer. Errors: see rtrs_call().
  Result<std::size_t> call(std::string_view message, ConstBytes out = {}, Bytes in = {},
                           unsigned flags = 0) {
    const iovec from = {const_cast<std::byte*>(out.data()), out.size()};
    const iovec to = {in.data(), in.size()};
    return call(message, {&from, out.empty() ? 0U : 1U}, {&to, in.empty() ? 0U : 1U}, flags);
  }
  /// The same with data in several parts.
  Result<std::size_t> call(std::string_view message, std::span<const iovec> out,
                           std::span<const iovec> in, unsigned flags = 0) {
    std::size_t length = 0;
    const int error = rtrs_call(client_.get(), message.data(), message.size(), out.data(),
                                static_cast<int>(out.size()), in.data(),
                                static_cast<int>(in.size()), &length, flags);
    if (error != 0) return Error{error, rtrs_strerror(error)};
    return length;
  }

  /// Sends a request and waits for an answer of any length up to `most` bytes. Errors: rtrs_ask().
  Result<Answer> ask(std::string_view message, ConstBytes out = {}, std::size_t most = kMostAnswer,
                     unsigned flags = 0) {
    const iovec from = {const_cast<std::byte*>(out.data()), out.size()};
    void* memory = nullptr;
    std::size_t length = 0;
    const int error = rtrs_ask(client_.get(), message.data(), message.size(), &from,
                               out.empty() ? 0 : 1, most, &memory, &length, flags);
    if (error != 0) return Error{error, rtrs_strerror(error)};
    return Answer{memory, length};
  }

  /// Sends a request and returns; `done` is called on a thread of the library. The memory of `out`
  /// and `in` must stay until then. Errors: see rtrs_submit(); then `done` is not called.
  int submit(std::string_view message, ConstBytes out, Bytes in, Done done, unsigned flags = 0) {
    auto submitted = std::make_unique<Submitted>(message, out, in, flags);
    submitted->told = std::move(done);
    submitted->operation.done = [](rtrs_operation* operation) { tell(*operation); };
    return hand_over(std::move(submitted));
  }
  /// The same for callers that poll: run_ended() calls `done` when descriptor() is readable.
  int enqueue(std::string_view message, ConstBytes out, Bytes in, Done done, unsigned flags = 0) {
    auto submitted = std::make_unique<Submitted>(message, out, in, flags);
    submitted->told = std::move(done);
    return hand_over(std::move(submitted));
  }
  /// Errors: -1, see rtrs_fd().
  int descriptor() { return rtrs_fd(client_.get()); }
  /// Calls `done` of all enqueued operations that have ended. Returns their number. After
  /// shutdown() the descriptor stays readable: 0 with a client that is not alive() says then that
  /// none is left.
  std::size_t run_ended() {
    std::array<rtrs_operation*, 64> ended;
    std::size_t told = 0;
    int count = 0;
    while ((count = rtrs_next(client_.get(), ended.data(), int{ended.size()})) > 0) {
      for (int i = 0; i < count; ++i, ++told) tell(*ended[i]);
    }
    return told;
  }

  /// Memory that requests use without a copy as long as this lives. Must go before its client.
  class Registration {
   public:
    Registration(Registration&& other) noexcept
        : client_{std::exchange(other.client_, nullptr)}, memory_{other.memory_} {}
    Registration& operator=(Registration&&) = delete;
    ~Registration() {
      if (client_ != nullptr) rtrs_unregister_memory(client_, memory_.data(), memory_.size());
    }

   private:
    friend Client;
    Registration(rtrs_client* client, Bytes memory) : client_{client}, memory_{memory} {}

    rtrs_client* client_;
    Bytes memory_;
  };
  /// Errors: see rtrs_register_memory().
  Result<Registration> register_memory(Bytes memory) {
    rtrs_error error{};
    if (rtrs_register_memory(client_.get(), memory.data(), memory.size(), &error) != 0) {
      return Error{error.code, error.text};
    }
    return Registration{client_.get(), memory};
  }

  rtrs_limits limits() const {
    auto limits = defaults<rtrs_limits>();
    rtrs_client_limits(client_.get(), &limits);
    return limits;
  }
  std::vector<rtrs_path> paths() const {
    std::vector<rtrs_path> paths(kMaxPaths, defaults<rtrs_path>());
    const int count = rtrs_client_paths(client_.get(), paths.data(), kMaxPaths);
    paths.resize(static_cast<std::size_t>(count < kMaxPaths ? count : kMaxPaths));
    return paths;
  }
  /// An errno as the code, 0 = done. Errors: see rtrs_add_path().
  Error add_path(const char* path) { return change(rtrs_add_path, path); }
  Error remove_path(const char* path) { return change(rtrs_remove_path, path); }
  /// Errors: EINVAL.
  int set_policy(const char* policy) { return rtrs_set_policy(client_.get(), policy); }

  /// Calls of all threads end with ECANCELED within 250 ms, and so does every one that follows.
  /// Operations that have not ended do so, too: their `done` is called as for every other end.
  void shutdown() { rtrs_shutdown(client_.get()); }
  bool alive() const { return rtrs_client_alive(client_.get()) != 0; }
  rtrs_client* get() const { return client_.get(); }

 private:
  static constexpr int kMaxPaths = 16;  ///< more than a client can have

  struct Submitted;
  /// Operations that have not ended.
  struct UnderWay {
    std::atomic<bool> used{false};  ///< there have been some
    std::mutex mutex;
    std::set<Submitted*> all;
  };
  /// An operation with all that must stay as long as it.
  struct Submitted {
    Submitted(std::string_view words, ConstBytes out, Bytes in, unsigned flags)
        : message{words},
          from{const_cast<std::byte*>(out.data()), out.size()},
          to{in.data(), in.size()} {
      operation.flags = flags;
      operation.message = message.data();
      operation.message_length = message.size();
      operation.out = &from;
      operation.out_count = out.empty() ? 0 : 1;
      operation.in = &to;
      operation.in_count = in.empty() ? 0 : 1;
      operation.context = this;
    }
    std::shared_ptr<UnderWay> registered;
    std::string message;
    iovec from;
    iovec to;
    Done told;
    rtrs_operation operation = defaults<rtrs_operation>();
  };

  Error change(int (*function)(rtrs_client*, const char*, rtrs_error*), const char* path) {
    rtrs_error error{};
    function(client_.get(), path, &error);
    return {error.code, error.text};
  }

  explicit Client(rtrs_client* client)
      : client_{client, Disconnect{std::make_shared<UnderWay>()}} {}

  int hand_over(std::unique_ptr<Submitted> submitted) {
    // Before the mutex, which nobody may ever unlock in a child of fork().
    if (descriptor() < 0) return errno;
    const std::shared_ptr<UnderWay> under_way = client_.get_deleter().under_way;
    under_way->used.store(true, std::memory_order_relaxed);
    submitted->registered = under_way;
    {
      const std::lock_guard lock{under_way->mutex};
      under_way->all.insert(submitted.get());
    }
    Submitted* const operation = submitted.release();  // its end takes it back
    const int error = rtrs_submit(client_.get(), &operation->operation);
    if (error != 0) take_back(operation, *under_way);
    return error;
  }
  /// Null: ~Client() has taken it.
  static std::unique_ptr<Submitted> take_back(Submitted* submitted, UnderWay& under_way) {
    const std::lock_guard lock{under_way.mutex};
    return std::unique_ptr<Submitted>{under_way.all.erase(submitted) != 0 ? submitted : nullptr};
  }
  static void tell(rtrs_operation& operation) {
    auto* const submitted = static_cast<Submitted*>(operation.context);
    const std::shared_ptr<UnderWay> under_way = submitted->registered;
    if (const auto self = take_back(submitted, *under_way))
      self->told(self->operation.error, self->operation.answer_length);
  }

  struct Disconnect {
    void operator()(rtrs_client* client) const {
      const bool forked = under_way->used && rtrs_fd(client) < 0 && errno == RTRS_FORKED;
      rtrs_disconnect(client);
      if (forked) {  // the set may be half changed: it is left alone for good
        [[maybe_unused]] const auto* const left = new std::shared_ptr<UnderWay>{under_way};
        return;
      }
      // Enqueued operations belong to us again if their end was not reported.
      std::set<Submitted*> unreported;
      {
        const std::lock_guard lock{under_way->mutex};
        unreported.swap(under_way->all);
      }
      for (Submitted* submitted : unreported) delete submitted;
    }
    std::shared_ptr<UnderWay> under_way;
  };
  std::unique_ptr<rtrs_client, Disconnect> client_;
};

/// Waits for SIGTERM or SIGINT. Its constructor blocks both in the calling thread and in threads
/// that this one starts later, so that they do not end the program. The library's threads take no
/// signals.
class StopSignal {
 public:
  StopSignal() {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGTERM);
    sigaddset(&signals_, SIGINT);
    pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
  }
  int wait() const {
    int signal = 0;
    sigwait(&signals_, &signal);
    return signal;
  }

 private:
  sigset_t signals_;
};

/// A mapped block of a brick. Threads: any, but unmap() and the destructor.
class Map {
 public:
  Map(Map&& other) noexcept : map_{std::exchange(other.map_, nullptr)} {}
  Map& operator=(Map&& other) noexcept {
    std::swap(map_, other.map_);
    return *this;
  }
  ~Map() { unmap(); }

  /// One-sided, inside the block. Errors: see rtrs_brick_read().
  int read(std::uint64_t offset, Bytes into) {
    return rtrs_brick_read(map_, offset, into.data(), into.size());
  }
  int write(std::uint64_t offset, ConstBytes from) {
    return rtrs_brick_write(map_, offset, from.data(), from.size());
  }
  /// Gives the block back. Errors: ENOENT (it has ended before), EIO.
  int unmap() {
    rtrs_map* const map = std::exchange(map_, nullptr);
    return map != nullptr ? rtrs_brick_unmap(map) : 0;
  }
  rtrs_map* get() const { return map_; }

 private:
  friend class Brick;
  explicit Map(rtrs_map* map) : map_{map} {}

  rtrs_map* map_;
};

/// Blocks of 2 MiB at a server, read and written without its processor. It must outlive its maps.
/// Threads: any, but the destructor.
class Brick {
 public:
  static constexpr std::uint64_t kBlock = RTRS_BRICK_BLOCK;  ///< bytes
  using Range = rtrs_brick_range;
  using Extent = rtrs_brick_extent;

  /// `rnbd+tcp://HOST[:PORT]/EXPORT`, or `rnbd://...` over RDMA.
  static Result<Brick> open(const char* uri,
                            const ClientOptions& options = defaults<ClientOptions>()) {
    rtrs_error error{};
    rtrs_brick* brick = rtrs_brick_open(uri, &options, &error);
    if (brick == nullptr) return Error{error.code, error.text};
    return Brick{brick};
  }

  Result<rtrs_brick_info> info() {
    auto info = defaults<rtrs_brick_info>();
    if (const int error = rtrs_brick_describe(get(), &info)) return failed(error);
    return info;
  }
  /// All blocks or none. Errors: see rtrs_brick_alloc().
  int alloc(std::uint64_t id, std::uint32_t count = 1) {
    return rtrs_brick_alloc(get(), id, count, RTRS_BRICK_ALL);
  }
  int free(std::uint64_t id, std::uint32_t count = 1) {
    return rtrs_brick_free(get(), id, count, RTRS_BRICK_ALL);
  }
  /// Errors: see rtrs_brick_map().
  Result<Map> map(std::uint64_t id, unsigned flags = RTRS_MAP_WRITE) {
    rtrs_map* map = nullptr;
    if (const int error = rtrs_brick_map(get(), id, flags, &map)) return failed(error);
    return Map{map};
  }
  /// Makes earlier writes to these ranges durable; without one, all blocks mapped for writing.
  int sync(std::span<const Range> ranges = {}) {
    return rtrs_brick_sync(get(), ranges.data(), static_cast<int>(ranges.size()));
  }
  /// Call it after the loss of the memory path. When it returns, all maps are dead, and none of
  /// their writes lands any more.
  int recover() { return rtrs_brick_recover(get(), nullptr); }
  Result<std::vector<Extent>> list(rtrs_brick_listing what) {
    constexpr int kPage = 256;
    std::vector<Extent> all;
    for (std::uint64_t first = 0;;) {
      const std::size_t before = all.size();
      int found = 0;
      all.resize(before + kPage);
      const int error = rtrs_brick_list(get(), what, first, all.data() + before, kPage, &found);
      all.resize(before + static_cast<std::size_t>(found));
      if (error != 0) return failed(error);
      if (found < kPage) return all;
      first = all.back().id + all.back().blocks * kBlock;
    }
  }
  /// `wanted` must not block nor call the brick; see rtrs_brick_on_recall().
  void on_recall(std::function<void()> wanted) {
    if (!wanted_) return;  // moved away
    rtrs_brick_on_recall(get(), nullptr, nullptr);
    *wanted_ = std::move(wanted);
    if (!*wanted_) return;
    rtrs_brick_on_recall(
        get(), [](void* context) { (*static_cast<std::function<void()>*>(context))(); },
        wanted_.get());
  }
  rtrs_brick* get() const { return brick_.get(); }

 private:
  explicit Brick(rtrs_brick* brick) : brick_{brick, rtrs_brick_close} {}
  static Error failed(int error) { return {error, rtrs_strerror(error)}; }

  std::unique_ptr<std::function<void()>> wanted_ = std::make_unique<std::function<void()>>();
  std::unique_ptr<rtrs_brick, void (*)(rtrs_brick*)> brick_;
};

/// A request at the server. Its owner finishes it, once, on any thread; one that goes unfinished
/// ends with EIO. It can be moved, and kept in a container, but not copied.
class Request {
 public:
  explicit Request(const rtrs_incoming& incoming) : incoming_{incoming} {}
  Request(Request&& other) noexcept : incoming_{other.incoming_} {
    other.incoming_.request = nullptr;
  }
  Request& operator=(Request&& other) noexcept {
    std::swap(incoming_, other.incoming_);
    return *this;
  }
  ~Request() { fail(EIO); }

  std::string_view message() const {
    return {static_cast<const char*>(incoming_.message), incoming_.message_length};
  }
  ConstBytes data() const {
    return {static_cast<const std::byte*>(incoming_.data), incoming_.data_length};
  }
  std::size_t room() const { return incoming_.room; }
  unsigned flags() const { return incoming_.flags; }
  const rtrs_id& id() const { return incoming_.id; }
  rtrs_session* session() const { return incoming_.session; }
  /// The name that the client has proven; "" = none.
  std::string_view user() const { return rtrs_session_user(incoming_.session); }
  const rtrs_incoming& get() const { return incoming_; }

  void finish() { end(0, {}); }
  void fail(int error) { end(error, {}); }
  /// The answer is copied.
  void finish(ConstBytes answer) { end(0, answer); }
  void finish(std::string_view answer) { finish(bytes(answer)); }
  /// The answer is not copied. It lives, with all that it owns, until the client has it.
  template <class Range>
  void finish_with(Range answer) {
    if (incoming_.request == nullptr) return;
    auto* const kept = new Range(std::move(answer));
    const ConstBytes memory = bytes(*kept);
    rtrs_finish_with(
        std::exchange(incoming_.request, nullptr), memory.data(), memory.size(),
        [](void* context) { delete static_cast<Range*>(context); }, kept);
  }
  /// Takes the memory of data that came in several messages; its length is data().size(). Null:
  /// they came in one message, or were taken before.
  std::unique_ptr<std::byte[], void (*)(void*)> take_data() {
    return {static_cast<std::byte*>(rtrs_take_data(incoming_.request)), rtrs_free};
  }

 private:
  /// Only the first call does anything.
  void end(int error, ConstBytes answer) {
    rtrs_request* const request = std::exchange(incoming_.request, nullptr);
    if (request != nullptr) rtrs_finish(request, error, answer.data(), answer.size());
  }

  rtrs_incoming incoming_;  ///< `request` is null when it has been finished
};

/// A server's events beside requests; empty functions are not called. Threads: the session's event
/// loop.
struct SessionEvents {
  std::function<void(rtrs_session*)> up = {};
  std::function<void(rtrs_session*)> down = {};
  std::function<void(rtrs_session*, unsigned paths)> paths = {};
};

/// Listens, and gives requests to a handler. Threads: its owner's; the handler's as
/// rtrs_server_ops.
class Server {
 public:
  using Handler = std::function<void(Request)>;

  static Result<Server> listen(const char* uri, Handler handler,
                               const ServerOptions& options = defaults<ServerOptions>(),
                               SessionEvents events = {}) {
    auto own = std::make_unique<Handlers>(std::move(handler), std::move(events));
    auto ops = defaults<rtrs_server_ops>();
    ops.request = [](void* context, const rtrs_incoming* incoming) {
      static_cast<Handlers*>(context)->request(Request{*incoming});
    };
    ops.session_up = [](void* context, rtrs_session* session) {
      const auto& told = static_cast<Handlers*>(context)->events.up;
      if (told) told(session);
    };
    ops.session_down = [](void* context, rtrs_session* session) {
      const auto& told = static_cast<Handlers*>(context)->events.down;
      if (told) told(session);
    };
    ops.paths_changed = [](void* context, rtrs_session* session, unsigned paths) {
      const auto& told = static_cast<Handlers*>(context)->events.paths;
      if (told) told(session, paths);
    };
    rtrs_error error{};
    rtrs_server* server = rtrs_listen(uri, &ops, own.get(), &options, &error);
    if (server == nullptr) return Error{error.code, error.text};
    return Server{server, std::move(own)};
  }

  Server(Server&& other) noexcept
      : server_{std::exchange(other.server_, nullptr)}, handlers_{std::move(other.handlers_)} {}
  Server& operator=(Server&&) = delete;
  ~Server() { close(kDrainMs); }

  unsigned port() const { return rtrs_server_port(server_); }
  /// Waits at most `drain_ms` milliseconds for running requests. Errors: EBUSY (some still run; the
  /// handler is never destroyed then).
  int close(unsigned drain_ms) {
    const int error = rtrs_server_close(std::exchange(server_, nullptr), drain_ms);
    if (error != 0) handlers_.release();  // NOLINT: they may still be called
    return error;
  }
  rtrs_server* get() const { return server_; }

 private:
  struct Handlers {
    Handlers(Handler handler, SessionEvents told)
        : request{std::move(handler)}, events{std::move(told)} {}
    Handler request;
    SessionEvents events;
  };

  Server(rtrs_server* server, std::unique_ptr<Handlers> handlers)
      : server_{server}, handlers_{std::move(handlers)} {}

  rtrs_server* server_;
  std::unique_ptr<Handlers> handlers_;
};

}  // namespace v0
}  // namespace rtrs
