// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/backend/nbd.hpp"

#include <algorithm>
#include <bit>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <cstring>
#include <new>

#include "bridge/backend/identity.hpp"
#include "bridge/backend/nbd_connection.hpp"
#include "bridge/backend/specification.hpp"

namespace rnbd {

namespace {

/// A server that owes replies and sends none for that long counts as dead, unless it has changes
/// under way.
constexpr std::chrono::seconds kPatience{60};

/// For the answer to a question for the size. A client waits for it.
constexpr std::chrono::seconds kAnswerWithin{2};

/// After a question that got no answer, because a server may take one connection at a time. Each
/// further one doubles it.
constexpr std::chrono::minutes kFirstPause{1};
constexpr std::chrono::minutes kLongestPause{60};

class NbdQueue final : public BackendQueue {
 public:
  NbdQueue(std::shared_ptr<NbdShared> shared, std::shared_ptr<NbdConnection> connection,
           rtrs::Reactor& reactor)
      : shared_{std::move(shared)}, connection_{std::move(connection)}, reactor_{reactor} {}

  ~NbdQueue() override {
    // The connection may belong to another reactor, which must destroy it.
    rtrs::Reactor& home = connection_->home();
    if (&home != &reactor_) {
      boost::asio::post(home.io(), [connection = std::move(connection_)] {});
    }
  }

  void submit(BackendRequest& request) override {
    const int early = answer_at_once(request);
    if (early >= 0) return request.done(request, early);
    auto& io = *new (request.scratch) NbdIo;
    io.request = &request;
    io.origin = &reactor_;
    connection_->start(io);
  }

  bool broken() const override { return connection_->lost() || connection_->outgrown(); }

 private:
  /// An error, 0, or -1 when the server has to be asked.
  int answer_at_once(const BackendRequest& request) const {
    const BackendInfo& info = shared_->info;
    const int lost = shared_->flush_error;
    if (lost != 0 && (request.fua || request.operation == BackendOperation::flush)) return lost;
    if (shared_->uncertain && is_change(request.operation)) return EIO;
    const bool none_inside = request.length == 0 || request.offset >= connection_->size();
    switch (request.operation) {
      case BackendOperation::flush:
        return info.can_flush ? -1 : EOPNOTSUPP;
      case BackendOperation::read:
        if (!none_inside) return -1;
        std::memset(request.data, 0, request.length);
        return 0;
      case BackendOperation::write:
        if (info.read_only) return EROFS;
        break;
      case BackendOperation::discard:
        if (info.read_only) return EROFS;
        if (!info.can_discard) return EOPNOTSUPP;
        break;
      case BackendOperation::write_zeroes:
        if (info.read_only) return EROFS;
        if (!info.can_write_zeroes || (request.fast && !info.can_fast_zero)) return EOPNOTSUPP;
        break;
      case BackendOperation::extents:
        if (info.can_extents && !none_inside) return -1;
        request.extents->push_back({request.length, /*hole=*/false, /*zero=*/false});
        return 0;
      case BackendOperation::cache:
        if (!info.can_cache) return 0;
        break;
    }
    return none_inside ? 0 : -1;
  }

  std::shared_ptr<NbdShared> shared_;
  std::shared_ptr<NbdConnection> connection_;
  rtrs::Reactor& reactor_;
};

class NbdBackend final : public Backend, private DistantSize {
 public:
  explicit NbdBackend(std::shared_ptr<NbdShared> shared) : shared_{std::move(shared)} {}

  const BackendInfo& info() const override { return shared_->info; }
  std::uint64_t present_size() override { return shared_->size; }
  DistantSize* distant_size() override { return this; }
  std::optional<std::uint64_t> shrunk_to() const override {
    const std::uint64_t told = shared_->told;
    return told < shared_->size ? std::optional{told} : std::nullopt;
  }
  std::uint32_t life() const override { return shared_->life; }

  std::unique_ptr<BackendQueue> open_queue(rtrs::Reactor* reactor) override {
    return std::make_unique<NbdQueue>(shared_, connection_for(*reactor), *reactor);
  }

 private:
  using Clock = std::chrono::steady_clock;

  bool may_be_asked() const override { return Clock::now() >= next_question_.load(); }

  /// Not over a connection that serves requests, because the server keeps to what it told that one.
  std::optional<std::uint64_t> ask() override {
    auto handle = connect_nbd(shared_->uri, kAnswerWithin);
    const std::int64_t size = handle ? nbd_get_size(handle->get()) : -1;
    if (!handle && handle.error().error == ETIMEDOUT) {
      next_question_ = Clock::now() + pause_;
      pause_ = std::min(2 * pause_, kLongestPause);
    }
    if (size < 0) return std::nullopt;
    pause_ = kFirstPause;
    shared_->told = static_cast<std::uint64_t>(size);
    tell_if_shrunk();
    asked_ = may_become(shared_->told) ? std::move(*handle) : nullptr;
    return shared_->told;
  }

  bool take(std::uint64_t size) override {
    if (!may_become(size)) return false;
    // A flush over the next connection need not make durable what was written over this one. Both
    // are counted up, so that a connection that is lost meanwhile is not overlooked.
    if (!shared_->multi_conn) {
      ++shared_->sized_in_life;
      ++shared_->life;
    }
    shared_->size = size;
    // The present connections end before a new one is made, and some servers end with their last.
    const std::lock_guard lock{shared_->mutex};
    shared_->first = std::move(asked_);
    return true;
  }

  bool may_become(std::uint64_t size) const {
    const std::uint64_t known = shared_->size;
    // An export that came back larger after a lost connection may be another disk.
    if (shared_->life != shared_->sized_in_life) return false;
    // Clients were allowed to use the padding behind an end inside a sector.
    return size > known && known % 512 == 0;
  }

  void tell_if_shrunk() {
    const auto left = shrunk_to();
    if (!left || std::exchange(told_of_end_, true) || !shared_->log) return;
    shared_->log(rtrs::LogLevel::error,
                 shared_->uri + ": it has shrunk to " + std::to_string(*left) + " bytes from " +
                     std::to_string(shared_->size) + "; requests behind that fail with EIO");
  }

  std::shared_ptr<NbdConnection> connection_for(rtrs::Reactor& reactor) {
    if (shared_->multi_conn) return std::make_shared<NbdConnection>(shared_, reactor);
    // Without multi-conn, one connection may not see the writes of another.
    const std::lock_guard lock{shared_->mutex};
    auto connection = only_.lock();
    if (connection == nullptr || connection->lost() || connection->outgrown()) {
      connection = std::make_shared<NbdConnection>(shared_, reactor);
      only_ = connection;
    }
    return connection;
  }

  std::shared_ptr<NbdShared> shared_;
  std::weak_ptr<NbdConnection> only_;
  std::atomic<Clock::time_point> next_question_{Clock::time_point::min()};
  std::chrono::minutes pause_{kFirstPause};  ///< of ask(), as the next
  NbdHandle asked_;                          ///< that told of a larger size; ask()'s and take()'s
  bool told_of_end_ = false;
};

/// The largest block size of RNBD's messages.
constexpr std::int64_t kMaxBlock = 32768;

/// The server's block size, as a power of two within the limits of an export.
std::uint32_t block_size(nbd_handle* h, int kind, std::uint32_t fallback) {
  const std::int64_t size = nbd_get_block_size(h, kind);
  if (size <= 0) return fallback;
  return std::bit_floor(static_cast<std::uint32_t>(std::clamp<std::int64_t>(size, 512, kMaxBlock)));
}

/// Bytes per read and write command. At most the size that all servers accept, even if this one
/// accepts more.
std::uint64_t max_payload(nbd_handle* h, std::uint32_t block) {
  constexpr std::uint64_t kMost = 32 * 1024 * 1024;
  const std::int64_t size = nbd_get_block_size(h, LIBNBD_SIZE_MAXIMUM);
  if (size <= 0) return kMost;
  return std::max<std::uint64_t>(std::min<std::uint64_t>(size, kMost) / block, 1) * block;
}

void probe(NbdShared& shared, nbd_handle* h, bool read_only) {
  BackendInfo& info = shared.info;
  info.size = static_cast<std::uint64_t>(std::max<std::int64_t>(nbd_get_size(h), 0));
  shared.size = shared.told = info.size;
  info.read_only = read_only || nbd_is_read_only(h) == 1;
  info.logical_block = block_size(h, LIBNBD_SIZE_MINIMUM, 512);
  info.physical_block = std::max(block_size(h, LIBNBD_SIZE_PREFERRED, 4096), info.logical_block);
  info.rotational = nbd_is_rotational(h) == 1;
  info.can_discard = nbd_can_trim(h) == 1;
  info.can_write_zeroes = nbd_can_zero(h) == 1;
  info.can_fast_zero = nbd_can_fast_zero(h) == 1;
  info.can_extents = nbd_can_meta_context(h, LIBNBD_CONTEXT_BASE_ALLOCATION) == 1;
  info.can_cache = nbd_can_cache(h) == 1;
  shared.multi_conn = nbd_can_multi_conn(h) == 1;
  shared.native_fua = nbd_can_fua(h) == 1;
  shared.max_payload = max_payload(h, info.logical_block);
  info.can_flush = nbd_can_flush(h) == 1;
  info.can_fua = shared.native_fua || info.can_flush;
  // Without either it is unknown, and a cache that cannot be flushed is useless.
  info.volatile_cache = info.can_fua;
  info.queues_share = shared.multi_conn || info.can_flush;  // all may have one connection
  info.discard_granularity = info.can_discard ? info.logical_block : 0;
  // NBD has no identity of storage: the same URI is taken for the same storage.
  info.uuid = uuid_of(shared.uri);
}

/// The log tells an operator who exports it for writing.
void warn_of_read_only(const NbdShared& shared, const BackendOptions& options) {
  if (!shared.info.read_only || options.read_only || options.read_only_fallback || !shared.log)
    return;
  shared.log(rtrs::LogLevel::warning,
             shared.uri +
                 ": the NBD server exports it read-only, so it is served read-only; write ,ro "
                 "behind it, or let that server allow writing and restart this one");
}

/// A server without a flush either has no cache, or may lose its contents.
void warn_without_flush(const NbdShared& shared) {
  if (shared.info.can_flush || shared.info.read_only || !shared.log) return;
  shared.log(rtrs::LogLevel::warning,
             shared.uri + ": the NBD server has no flush" +
                 (shared.info.can_fua ? "" : ", nor FUA") +
                 ", so clients are not offered any: nothing tells them when their writes are "
                 "durable");
}

}  // namespace

tl::expected<std::unique_ptr<Backend>, Failure> open_nbd(const std::string& uri,
                                                         const BackendOptions& options) {
  return open_patient_nbd(uri, options, kPatience);
}

tl::expected<std::unique_ptr<Backend>, Failure> open_patient_nbd(
    const std::string& uri, const BackendOptions& options, std::chrono::nanoseconds patience) {
  if (!uri.starts_with("nbd://") && !uri.starts_with("nbds://") && !uri.starts_with("nbd+") &&
      !uri.starts_with("nbds+")) {
    return bad_specification(EINVAL, "nbd:" + uri,
                             "this is no NBD URI; write nbd://HOST[:PORT]/EXPORT or "
                             "nbd+unix:///EXPORT?socket=PATH");
  }
  auto handle = connect_nbd(uri, kNbdConnectTimeout);
  if (!handle) {
    return bad_specification(handle.error().error, uri,
                             handle.error().text +
                                 "; see that the NBD server runs and has this "
                                 "export (nbdinfo '" +
                                 uri + "')");
  }
  auto shared = std::make_shared<NbdShared>();
  shared->uri = uri;
  shared->log = options.log;
  shared->patience = patience;
  probe(*shared, handle->get(), options.read_only);
  if (nbd_get_size(handle->get()) < 0) {
    return bad_specification(EINVAL, uri, "the NBD server tells no size that can be");
  }
  const std::int64_t minimum = nbd_get_block_size(handle->get(), LIBNBD_SIZE_MINIMUM);
  if (minimum > kMaxBlock) {
    return bad_specification(EINVAL, uri,
                             "the NBD server takes blocks of at least " + std::to_string(minimum) +
                                 " bytes, and RNBD has room for 32768; make it take smaller ones, "
                                 "or put nbdkit's blocksize filter in front of it");
  }
  warn_of_read_only(*shared, options);
  warn_without_flush(*shared);
  shared->first = std::move(*handle);
  return std::make_unique<NbdBackend>(std::move(shared));
}

}  // namespace rnbd
