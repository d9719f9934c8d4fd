// SPDX-License-Identifier: BSD-3-Clause
// rnbd-backend-rbd.so: images of a Ceph cluster by librbd's asynchronous calls.
// Source: rbd/librbd.h and rados/librados.h of Ceph 16.
#include "bridge/backend/rbd_module.hpp"

#include <rados/librados.h>
#include <rbd/librbd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace rnbd {
namespace {

/// A connection to a cluster, which all images of the same configuration and user share.
class Cluster {
 public:
  Cluster() = default;
  ~Cluster() {
    if (handle_ != nullptr) rados_shutdown(handle_);
  }
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  /// 0 or a negative errno.
  int connect(const std::string& conf, const std::string& id) {
    int error = rados_create(&handle_, id.empty() ? nullptr : id.c_str());
    if (error < 0) {
      handle_ = nullptr;
      return error;
    }
    error = rados_conf_read_file(handle_, conf.empty() ? nullptr : conf.c_str());
    if (error < 0) return error;
    // A flush means what it says, and a cluster that is away is told within seconds. There is no
    // limit for operations: one that has timed out may still be carried out.
    for (const auto& [key, value] :
         {std::pair{"rbd_cache", "false"}, std::pair{"client_mount_timeout", "10"},
          std::pair{"rados_mon_op_timeout", "10"}, std::pair{"rados_osd_op_timeout", "0"}}) {
      error = rados_conf_set(handle_, key, value);
      if (error < 0) return error;
    }
    return rados_connect(handle_);
  }
  rados_t handle() const { return handle_; }
  /// The cluster takes nothing from this instance any more: the next image needs another one.
  void shun() { shunned_ = true; }
  bool shunned() const { return shunned_; }

 private:
  rados_t handle_ = nullptr;
  std::atomic<bool> shunned_{false};
};

/// Connects where nobody has yet. 0 or a negative errno.
int cluster_for(const RbdTarget& target, std::shared_ptr<Cluster>& cluster) {
  static std::mutex mutex;
  static std::map<std::pair<std::string, std::string>, std::weak_ptr<Cluster>> known;
  const std::lock_guard lock{mutex};
  auto& entry = known[{target.conf, target.id}];
  cluster = entry.lock();
  if (cluster != nullptr && !cluster->shunned()) return 0;
  cluster = std::make_shared<Cluster>();
  const int error = cluster->connect(target.conf, target.id);
  if (error >= 0) entry = cluster;
  return error;
}

}  // namespace

struct RbdImage {
  ~RbdImage() {
    if (watching) rbd_update_unwatch(image, watch);
    if (image != nullptr) rbd_close(image);
    if (pool != nullptr) rados_ioctx_destroy(pool);
  }

  std::shared_ptr<Cluster> cluster;
  rados_ioctx_t pool = nullptr;
  rbd_image_t image = nullptr;
  std::uint64_t watch = 0;
  bool watching = false;
  std::atomic<std::uint64_t> size{0};
};

namespace {

void look_at_size(void* context) {
  auto& image = *static_cast<RbdImage*>(context);
  std::uint64_t size = 0;
  if (rbd_get_size(image.image, &size) == 0) image.size = size;
}

int open_pool(const RbdTarget& target, RbdImage& image) {
  const int error = rados_ioctx_create(image.cluster->handle(), target.pool, &image.pool);
  if (error >= 0 && *target.space != '\0') rados_ioctx_set_namespace(image.pool, target.space);
  return error;
}

int open_image(const RbdTarget& target, RbdImage& image) {
  const char* const snapshot = *target.snapshot != '\0' ? target.snapshot : nullptr;
  return target.read_only ? rbd_open_read_only(image.pool, target.image, &image.image, snapshot)
                          : rbd_open(image.pool, target.image, &image.image, snapshot);
}

/// The lock is the fence: a holder that is gone is put on the cluster's blocklist first.
int take_lock(const RbdTarget& target, RbdImage& image) {
  if (target.read_only) return 0;
  std::uint64_t features = 0;
  const int error = rbd_get_features(image.image, &features);
  if (error < 0) return error;
  if ((features & RBD_FEATURE_EXCLUSIVE_LOCK) == 0) return -ENOTSUP;
  const int taken = rbd_lock_acquire(image.image, RBD_LOCK_MODE_EXCLUSIVE);
  return taken == -EROFS || taken == -EAGAIN || taken == -EPERM ? -EBUSY : taken;
}

int find_facts(const RbdTarget& target, RbdImage& image, RbdFacts& facts) {
  rbd_image_info_t info{};
  std::array<char, 64> id{};
  std::array<char, 40> cluster{};
  int error = rbd_stat(image.image, &info, sizeof info);
  if (error >= 0) error = rbd_get_id(image.image, id.data(), id.size());
  if (error >= 0) {
    error = rados_cluster_fsid(image.cluster->handle(), cluster.data(), cluster.size());
  }
  if (error < 0) return error;
  facts.size = info.size;
  image.size = info.size;
  const auto pool = static_cast<long long>(rados_ioctx_get_id(image.pool));
  const int length =
      std::snprintf(facts.identity, sizeof facts.identity, "rbd %s %lld %s%s%s", cluster.data(),
                    pool, id.data(), *target.snapshot != '\0' ? "@" : "", target.snapshot);
  return static_cast<std::size_t>(length) < sizeof facts.identity ? 0 : -ENAMETOOLONG;
}

int watch_size(RbdImage& image) {
  const int error = rbd_update_watch(image.image, &image.watch, look_at_size, &image);
  image.watching = error >= 0;
  look_at_size(&image);
  return error;
}

int open(const RbdTarget& target, RbdImage** result, RbdFacts& facts, const char** step) {
  auto image = std::make_unique<RbdImage>();
  const auto failed = [&](int error, const char* name) {
    *step = name;
    return error < 0;
  };
  int error = cluster_for(target, image->cluster);
  if (failed(error, "connecting to the cluster")) return error;
  if (failed(error = open_pool(target, *image), "opening the pool")) return error;
  if (failed(error = open_image(target, *image), "opening the image")) return error;
  if (failed(error = take_lock(target, *image), "taking the exclusive lock")) return error;
  if (failed(error = find_facts(target, *image, facts), "asking for its size")) return error;
  if (*target.snapshot == '\0' && failed(error = watch_size(*image), "watching it")) return error;
  *result = image.release();
  return 0;
}

void close(RbdImage* image) { delete image; }

void complete(RbdOperation& operation, std::int64_t result) {
  if (result == -ESHUTDOWN) operation.image->cluster->shun();
  operation.completed(operation, result);
}

void on_completion(rbd_completion_t completion, void* context) {
  const std::int64_t result = rbd_aio_get_return_value(completion);
  rbd_aio_release(completion);
  complete(*static_cast<RbdOperation*>(context), result);
}

int issue(rbd_image_t image, RbdOperation& operation, rbd_completion_t completion) {
  auto* const data = reinterpret_cast<char*>(operation.data);
  switch (operation.kind) {
    case RbdOperation::Kind::read:
      return rbd_aio_read(image, operation.offset, operation.length, data, completion);
    case RbdOperation::Kind::write:
      return rbd_aio_write(image, operation.offset, operation.length, data, completion);
    case RbdOperation::Kind::flush:
      return rbd_aio_flush(image, completion);
    case RbdOperation::Kind::discard:
      return rbd_aio_discard(image, operation.offset, operation.length, completion);
    case RbdOperation::Kind::write_zeroes:
      return rbd_aio_write_zeroes(image, operation.offset, operation.length, completion, 0, 0);
    case RbdOperation::Kind::write_thick_zeroes:
      return rbd_aio_write_zeroes(image, operation.offset, operation.length, completion,
                                  RBD_WRITE_ZEROES_FLAG_THICK_PROVISION, 0);
  }
  return -EINVAL;
}

void start(RbdImage* image, RbdOperation& operation) {
  operation.image = image;
  rbd_completion_t completion = nullptr;
  int error = rbd_aio_create_completion(&operation, on_completion, &completion);
  if (error < 0) return complete(operation, error);
  error = issue(image->image, operation, completion);
  if (error >= 0) return;
  rbd_aio_release(completion);
  complete(operation, error);
}

std::uint64_t size(RbdImage* image) { return image->size; }

int extents(RbdImage* image, std::uint64_t offset, std::uint64_t length, RbdExtentSink sink,
            void* context) {
  // Whole objects: the object map answers without asking each object.
  return rbd_diff_iterate2(image->image, nullptr, offset, length, /*include_parent=*/1,
                           /*whole_object=*/1, sink, context);
}

constexpr RbdModule kModule{kRbdModuleVersion, open, close, start, size, extents};

}  // namespace
}  // namespace rnbd

/// Found by dlsym().
extern "C" __attribute__((visibility("default"))) const rnbd::RbdModule* rnbd_rbd_module() {
  return &rnbd::kModule;
}
