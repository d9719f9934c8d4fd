// SPDX-License-Identifier: BSD-3-Clause
// rnbd-backend-rbd.so: images of a Ceph cluster by librbd's asynchronous calls.
// Source: rbd/librbd.h and rados/librados.h of Ceph 16.
#include "bridge/backend/rbd_module.hpp"

#include <rados/librados.h>
#include <rbd/librbd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bridge/backend/rbd_holder.hpp"

namespace rnbd {
namespace {

struct Setting {
  const char* key;
  const char* value;
};
/// Durability and the fence depend on these, and an image's own configuration counts more.
constexpr Setting kEssential[] = {
    {"rbd_cache", "false"},  // an answered write is durable
    {"rbd_plugins", ""},     // there is a cache on disk among them
    {"rbd_blocklist_on_break_lock", "true"},
};
constexpr Setting kSettings[] = {
    kEssential[0],
    kEssential[1],
    kEssential[2],
    // librbd 16 writes any other time so that the monitors refuse it.
    {"rbd_blocklist_expire_seconds", "0"},
    // An absent cluster is noticed within seconds. There is no limit for operations: one that has
    // timed out may still be carried out.
    {"client_mount_timeout", "10"},
    {"rados_mon_op_timeout", "10"},
    {"rados_osd_op_timeout", "0"},
    // The caller submits by itself, which saves a wake-up. It must not be blocked then: the
    // sessions limit what is under way.
    {"rbd_non_blocking_aio", "false"},
    {"objecter_inflight_ops", "1048576"},
    {"objecter_inflight_op_bytes", "1099511627776"},
};

/// A connection to a cluster, which all images of the same configuration and user share.
class Cluster {
 public:
  Cluster() = default;
  ~Cluster() {
    if (handle_ != nullptr) rados_shutdown(handle_);
  }
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  /// 0 or a negative errno, of the step that failed.
  int connect(const std::string& conf, const std::string& id, const char*& step) {
    step = kRbdConnectStep;
    int error = rados_create(&handle_, id.empty() ? nullptr : id.c_str());
    if (error < 0) {
      handle_ = nullptr;
      return error;
    }
    error = rados_conf_read_file(handle_, conf.empty() ? nullptr : conf.c_str());
    if (error < 0) {
      step = kRbdConfigurationStep;
      return error;
    }
    for (const auto& [key, value] : kSettings) {
      error = rados_conf_set(handle_, key, value);
      const bool lacks_it = error == -ENOENT;  // this version of Ceph
      if (error < 0 && !lacks_it) return error;
    }
    return rados_connect(handle_);
  }
  rados_t handle() const { return handle_; }
  /// True: the cluster takes nothing from this instance any more, and the next image needs another
  /// one.
  const std::shared_ptr<std::atomic<bool>>& shunned() const { return shunned_; }

 private:
  rados_t handle_ = nullptr;
  std::shared_ptr<std::atomic<bool>> shunned_ = std::make_shared<std::atomic<bool>>(false);
};

/// Connects unless there is a connection already. 0 or a negative errno.
int cluster_for(const RbdTarget& target, std::shared_ptr<Cluster>& cluster, const char*& step) {
  static std::mutex mutex;
  static std::map<std::pair<std::string, std::string>, std::weak_ptr<Cluster>> known;
  const std::lock_guard lock{mutex};
  auto& entry = known[{target.conf, target.id}];
  cluster = entry.lock();
  if (cluster != nullptr && !*cluster->shunned()) return 0;
  cluster = std::make_shared<Cluster>();
  const int error = cluster->connect(target.conf, target.id, step);
  if (error >= 0) entry = cluster;
  return error;
}

/// Whether the cluster still takes requests for an image. Outlives it, for a callback that is late.
struct Standing {
  std::atomic<bool> fenced{false};
  std::atomic<bool> looking{false};
  std::atomic<std::int64_t> looked_at{0};  ///< ns of the steady clock
  std::array<char, 512> sector{};          ///< is read for that
  std::shared_ptr<std::atomic<bool>> cluster_shunned;

  void note(std::int64_t result) {
    if (result != -ESHUTDOWN) return;
    fenced = true;
    *cluster_shunned = true;
  }
};

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
  std::shared_ptr<Standing> standing = std::make_shared<Standing>();
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

bool contradicts(const rbd_config_option_t& option) {
  return std::ranges::any_of(kEssential, [&](const Setting& setting) {
    return std::string_view{option.name} == setting.key &&
           std::string_view{option.value} != setting.value;
  });
}

/// The configuration of the image and of its pool. 0 or a negative errno; EPERM: it forbids an
/// essential setting.
int check_settings(const RbdTarget& target, RbdImage& image) {
  if (*target.snapshot != '\0') return 0;  // nothing changes it
  std::vector<rbd_config_option_t> options(256);
  int count = static_cast<int>(options.size());
  int error = rbd_config_image_list(image.image, options.data(), &count);
  if (error == -ERANGE) {
    options.resize(static_cast<std::size_t>(count));
    error = rbd_config_image_list(image.image, options.data(), &count);
  }
  if (error < 0) return error;
  const auto end = options.begin() + count;
  const bool forbidden = std::any_of(options.begin(), end, contradicts);
  rbd_config_image_list_cleanup(options.data(), count);
  return forbidden ? -EPERM : 0;
}

// ---- The lock -----------------------------------------------------------------------------------

/// In the image's metadata: the process that holds the lock.
constexpr char kHolderKey[] = "rnbd_holder";

/// "": the lock is free. 0 or a negative errno.
int find_holder(RbdImage& image, std::string& holder) {
  std::array<char*, 4> owners{};
  std::size_t count = owners.size();
  rbd_lock_mode_t mode{};
  const int error = rbd_lock_get_owners(image.image, &mode, owners.data(), &count);
  if (error == -ENOENT) return 0;
  if (error < 0) return error;
  if (count > 0) holder = owners[0];
  rbd_lock_get_owners_cleanup(owners.data(), count);
  return 0;
}

/// The cluster drops the watch of a client that has been silent for half a minute.
bool is_watching(RbdImage& image, const std::string& client) {
  std::array<rbd_image_watcher_t, 64> watchers{};
  std::size_t count = watchers.size();
  if (rbd_watchers_list(image.image, watchers.data(), &count) < 0) return true;
  const auto end = watchers.begin() + static_cast<std::ptrdiff_t>(count);
  const bool found =
      std::any_of(watchers.begin(), end, [&](const auto& each) { return client == each.addr; });
  rbd_watchers_list_cleanup(watchers.data(), count);
  return found;
}

int load_note(RbdImage* image, const char* key, char* value, std::size_t* size) {
  return rbd_metadata_get(image->image, key, value, size);
}

int save_note(RbdImage* image, const char* key, const char* value) {
  return rbd_metadata_set(image->image, key, value);
}

bool is_dead(RbdImage& image, const std::string& holder) {
  std::array<char, 512> described{};
  std::size_t size = described.size() - 1;
  return load_note(&image, kHolderKey, described.data(), &size) >= 0 &&
         is_certainly_dead(described.data(), holder);
}

/// A living holder is not asked to release the lock. A dead one is put on the cluster's blocklist
/// before the lock changes hands, so that none of its writes lands any more.
int displace_holder(RbdImage& image) {
  std::string holder;
  const int error = find_holder(image, holder);
  if (error < 0 || holder.empty()) return error;
  if (!is_dead(image, holder)) return is_watching(image, holder) ? -EBUSY : 0;
  const int broken = rbd_lock_break(image.image, RBD_LOCK_MODE_EXCLUSIVE, holder.c_str());
  return broken == -ENOENT ? 0 : broken;
}

/// The image is open for writing, so that EROFS means the lock; EAGAIN: it changes hands now.
int take_lock(const RbdTarget& target, RbdImage& image) {
  if (target.read_only) return 0;
  std::uint64_t features = 0;
  int error = rbd_get_features(image.image, &features);
  if (error < 0) return error;
  if ((features & RBD_FEATURE_EXCLUSIVE_LOCK) == 0) return -ENOTSUP;
  error = displace_holder(image);
  if (error >= 0) error = rbd_lock_acquire(image.image, RBD_LOCK_MODE_EXCLUSIVE);
  if (error < 0) return error == -EROFS || error == -EAGAIN ? -EBUSY : error;
  std::string mine;
  if ((error = find_holder(image, mine)) < 0) return error;
  // Without this note its successor only waits longer.
  const std::string described = describe_holder(mine);
  if (!described.empty()) (void)save_note(&image, kHolderKey, described.c_str());
  return 0;
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
  int error = cluster_for(target, image->cluster, *step);
  if (error < 0) return error;
  image->standing->cluster_shunned = image->cluster->shunned();
  if (failed(error = open_pool(target, *image), "opening the pool")) return error;
  if (failed(error = open_image(target, *image), "opening the image")) return error;
  if (failed(error = check_settings(target, *image), kRbdSettingsStep)) return error;
  if (failed(error = take_lock(target, *image), "taking the exclusive lock")) return error;
  if (failed(error = find_facts(target, *image, facts), "asking for its size")) return error;
  if (*target.snapshot == '\0' && failed(error = watch_size(*image), "watching it")) return error;
  *result = image.release();
  return 0;
}

void close(RbdImage* image) { delete image; }

void complete(RbdOperation& operation, std::int64_t result) {
  operation.image->standing->note(result);
  operation.completed(operation, result);
}

void on_probed(rbd_completion_t completion, void* context) {
  const std::unique_ptr<std::shared_ptr<Standing>> standing{
      static_cast<std::shared_ptr<Standing>*>(context)};
  (*standing)->note(rbd_aio_get_return_value(completion));
  rbd_aio_release(completion);
  (*standing)->looking = false;
}

/// Reads a little now and then, so that an idle image learns before its next request that the
/// cluster refuses it.
void probe(RbdImage& image) {
  constexpr std::int64_t kPause = 2'000'000'000;
  Standing& standing = *image.standing;
  const std::int64_t now = std::chrono::steady_clock::now().time_since_epoch().count();
  if (now - standing.looked_at < kPause || standing.looking.exchange(true)) return;
  standing.looked_at = now;
  auto context = std::make_unique<std::shared_ptr<Standing>>(image.standing);
  rbd_completion_t completion = nullptr;
  int error = rbd_aio_create_completion(context.get(), on_probed, &completion);
  if (error >= 0) {
    error =
        rbd_aio_read(image.image, 0, standing.sector.size(), standing.sector.data(), completion);
    if (error < 0) rbd_aio_release(completion);
  }
  if (error < 0) {
    standing.looking = false;
  } else {
    context.release();  // on_probed() has it
  }
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

std::uint64_t size(RbdImage* image) {
  probe(*image);
  return image->size;
}

bool fenced(RbdImage* image) { return image->standing->fenced; }

int extents(RbdImage* image, std::uint64_t offset, std::uint64_t length, RbdExtentSink sink,
            void* context) {
  // Whole objects: the object map answers without asking each object.
  return rbd_diff_iterate2(image->image, nullptr, offset, length, /*include_parent=*/1,
                           /*whole_object=*/1, sink, context);
}

constexpr RbdModule kModule{kRbdModuleVersion, open,      close,    start, size, fenced,
                            extents,           load_note, save_note};

}  // namespace
}  // namespace rnbd

/// Found by dlsym().
extern "C" __attribute__((visibility("default"))) const rnbd::RbdModule* rnbd_rbd_module() {
  return &rnbd::kModule;
}
