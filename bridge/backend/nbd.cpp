#include "bridge/backend/nbd.hpp"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <cstring>
#include <new>

#include "bridge/backend/nbd_connection.hpp"
#include "bridge/backend/specification.hpp"

namespace rnbd {

namespace {

class NbdQueue final : public BackendQueue {
 public:
  NbdQueue(std::shared_ptr<NbdShared> shared, std::shared_ptr<NbdConnection> connection,
           rtrs::Reactor& reactor)
      : shared_{std::move(shared)}, connection_{std::move(connection)}, reactor_{reactor} {}

  ~NbdQueue() override {
    // The connection may be another reactor's, which must be the one to take it apart.
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
    io.losses = shared_->losses.happened();
    connection_->start(io);
  }

  bool broken() const override { return connection_->lost(); }

 private:
  /// An error, 0, or -1 when the server has to be asked.
  int answer_at_once(const BackendRequest& request) const {
    const BackendInfo& info = shared_->facts.info;
    const bool none_inside = request.length == 0 || request.offset >= info.size;
    switch (request.operation) {
      case BackendOperation::flush:
        return shared_->facts.can_flush ? -1 : 0;
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

class NbdBackend final : public Backend {
 public:
  explicit NbdBackend(std::shared_ptr<NbdShared> shared) : shared_{std::move(shared)} {}

  const BackendInfo& info() const override { return shared_->facts.info; }

  LossCount* losses() override { return &shared_->losses; }

  std::unique_ptr<BackendQueue> open_queue(rtrs::Reactor* reactor) override {
    return std::make_unique<NbdQueue>(shared_, connection_for(*reactor), *reactor);
  }

 private:
  std::shared_ptr<NbdConnection> connection_for(rtrs::Reactor& reactor) {
    if (shared_->facts.multi_conn) return std::make_shared<NbdConnection>(shared_, reactor);
    // Without multi-conn one connection may not see what another one wrote.
    const std::lock_guard lock{shared_->mutex};
    auto connection = only_.lock();
    if (connection == nullptr || connection->lost()) {
      connection = std::make_shared<NbdConnection>(shared_, reactor);
      only_ = connection;
    }
    return connection;
  }

  std::shared_ptr<NbdShared> shared_;
  std::weak_ptr<NbdConnection> only_;
};

}  // namespace

tl::expected<std::unique_ptr<Backend>, Failure> open_nbd(const std::string& uri,
                                                         const BackendOptions& options) {
  if (!uri.starts_with("nbd://") && !uri.starts_with("nbds://") && !uri.starts_with("nbd+") &&
      !uri.starts_with("nbds+")) {
    return bad_specification(EINVAL, "nbd:" + uri,
                             "this is no NBD URI; write nbd://HOST[:PORT]/EXPORT or "
                             "nbd+unix:///EXPORT?socket=PATH");
  }
  auto handle = connect_nbd(uri);
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
  shared->read_only = options.read_only;
  shared->facts = ask_facts(handle->get(), uri, options.read_only);
  if (shared->facts.info.read_only && !options.read_only && !options.read_only_fallback) {
    return bad_specification(EROFS, uri, "the NBD server exports it read-only; do the same");
  }
  const std::int64_t minimum = nbd_get_block_size(handle->get(), LIBNBD_SIZE_MINIMUM);
  if (minimum > kMaxNbdBlock) {
    return bad_specification(EINVAL, uri,
                             "the NBD server takes blocks of at least " + std::to_string(minimum) +
                                 " bytes, and RNBD has room for 32768; make it take smaller ones, "
                                 "or put nbdkit's blocksize filter in front of it");
  }
  if (shared->facts.info.size == 0) return bad_specification(EINVAL, uri, "the export is empty");
  shared->first = std::move(*handle);
  return std::make_unique<NbdBackend>(std::move(shared));
}

}  // namespace rnbd
