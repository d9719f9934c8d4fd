// SPDX-License-Identifier: BSD-3-Clause
// Bricks in the C interface of librtrs.
#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "bridge/client/brick/remote_brick.hpp"
#include "bridge/client/uri.hpp"
#include "rdma/library/birthplace.hpp"
#include "rdma/library/include/rtrs.h"
#include "rdma/library/options.hpp"

using rnbd::MappedBlock;
using rnbd::RemoteBrick;
using rtrs::Failure;
using rtrs::library::tell;

static_assert(std::uint32_t{RTRS_MAP_WRITE} == rnbd::wire::kMapWrite &&
              std::uint32_t{RTRS_MAP_OTHERS_READ} == rnbd::wire::kMapOthersRead &&
              std::uint32_t{RTRS_MAP_OTHERS_WRITE} == rnbd::wire::kMapOthersWrite &&
              std::uint32_t{RTRS_MAP_NOWAIT} == rnbd::wire::kMapNoWait);
static_assert(RTRS_BRICK_BLOCK == rnbd::wire::kBrickBlock);
static_assert(RTRS_BRICK_ALL == rnbd::wire::kAllocAll);

struct rtrs_map {
  rtrs_brick* brick = nullptr;
  MappedBlock block;
  unsigned settling = 0;  ///< calls that read from it for the sake of others
};

/// An open brick, and the maps that its user has not given back.
///
/// Threads: any.
struct rtrs_brick {
  const rtrs::library::Birthplace birthplace{};
  std::shared_ptr<rnbd::Session> session;
  std::unique_ptr<RemoteBrick> remote;
  std::mutex mutex;  ///< guards the maps
  std::condition_variable settled;
  std::set<std::unique_ptr<rtrs_map>> maps;
};

namespace {

const rtrs::Interrupt kNever{};

/// No exception may pass the C interface, and a child of fork() may not use its parent's brick.
template <class Call>
int guarded(const rtrs_brick& brick, Call call) noexcept {
  if (brick.birthplace.left()) return RTRS_FORKED;
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return ENOMEM;
  } catch (const std::exception&) {
    return EAGAIN;
  }
}

tl::expected<std::unique_ptr<rtrs_brick>, Failure> open(const char* text,
                                                        const rtrs_client_options* given) {
  const auto options = rtrs::library::read_options(given);
  if (!options) return tl::unexpected(options.error());
  const auto uri = rnbd::parse_device_uri(text != nullptr ? text : "");
  if (!uri) return tl::unexpected(Failure{EINVAL, uri.error()});
  if (uri->device.empty() || !uri->options.empty() || !uri->members.empty()) {
    return tl::unexpected(
        Failure{EINVAL, "a brick has one server and a name; write rnbd+tcp://HOST[:PORT]/EXPORT"});
  }
  auto settings = rtrs::library::client_settings(*options, "");
  if (!settings) return tl::unexpected(settings.error());
  settings->paths = {uri->path()};
  settings->features = rtrs::wire::kFeatureExactlyOnce | rtrs::wire::kFeatureUserMessages |
                       rtrs::wire::kFeatureAccessNotice | rnbd::kBrickFeatures;
  auto brick = std::make_unique<rtrs_brick>();
  auto session = rnbd::Session::connect(*std::move(settings), kNever);
  if (!session) return tl::unexpected(session.error());
  brick->session = *std::move(session);
  auto remote = RemoteBrick::open(*brick->session, uri->device, {}, uri->path(), kNever);
  if (!remote) return tl::unexpected(remote.error());
  brick->remote = *std::move(remote);
  return brick;
}

rtrs_brick_info told(const rnbd::wire::BrickInfoResponse& from) {
  rtrs_brick_info info{};
  info.blocks = from.blocks;
  info.free = from.free;
  info.in_memory = from.in_memory;
  info.epoch = from.sync_epoch;
  info.max_maps = from.max_maps;
  info.lease_ms = from.lease;
  info.durability = from.durability == 0 ? RTRS_BRICK_NEVER : RTRS_BRICK_SYNC;
  return info;
}

/// Makes the server's programs see all writes: a read on each connection that has carried some.
int settle(rtrs_brick& brick) {
  std::unique_lock lock{brick.mutex};
  const auto found =
      std::ranges::find_if(brick.maps, [](const auto& map) { return map->block.path->alive(); });
  if (found == brick.maps.end()) return 0;  // dead keys have no writes that are not seen
  rtrs_map& map = **found;
  ++map.settling;
  lock.unlock();
  const int error = RemoteBrick::settle(map.block, kNever);
  lock.lock();
  if (--map.settling == 0) brick.settled.notify_all();
  return error;
}

/// Takes a map from its brick, when nothing reads from it any more.
std::unique_ptr<rtrs_map> take(rtrs_map& map) {
  rtrs_brick& brick = *map.brick;
  std::unique_lock lock{brick.mutex};
  brick.settled.wait(lock, [&] { return map.settling == 0; });
  const auto found =
      std::ranges::find_if(brick.maps, [&](const auto& one) { return one.get() == &map; });
  return std::move(brick.maps.extract(found).value());
}

}  // namespace

rtrs_brick* rtrs_brick_open(const char* uri, const rtrs_client_options* options,
                            rtrs_error* error) {
  try {
    const rtrs::library::NoSignals no_signals;
    auto brick = open(uri, options);
    if (!brick) return tell(brick.error(), error), nullptr;
    return brick->release();
  } catch (const std::exception& exception) {
    return tell({ENOMEM, exception.what()}, error), nullptr;
  }
}

void rtrs_brick_close(rtrs_brick* brick) {
  if (brick != nullptr && !brick->birthplace.left()) delete brick;
}

int rtrs_brick_describe(rtrs_brick* brick, rtrs_brick_info* info) {
  return guarded(*brick, [&] {
    const auto now = brick->remote->info(kNever);
    if (!now) return now.error();
    auto result = told(*now);
    result.size = std::min(info->size, sizeof(result));
    std::memcpy(info, &result, result.size);
    return 0;
  });
}

int rtrs_brick_alloc(rtrs_brick* brick, uint64_t id, uint32_t count, unsigned flags) {
  if ((flags & ~RTRS_BRICK_ALL) != 0) return EINVAL;
  return guarded(*brick, [&] { return brick->remote->alloc(id, count, flags != 0, kNever); });
}

int rtrs_brick_free(rtrs_brick* brick, uint64_t id, uint32_t count, unsigned flags) {
  if ((flags & ~RTRS_BRICK_ALL) != 0) return EINVAL;
  return guarded(*brick, [&] { return brick->remote->free(id, count, flags != 0, kNever); });
}

int rtrs_brick_map(rtrs_brick* brick, uint64_t id, unsigned flags, rtrs_map** map) {
  *map = nullptr;
  constexpr unsigned kFlags =
      RTRS_MAP_WRITE | RTRS_MAP_OTHERS_READ | RTRS_MAP_OTHERS_WRITE | RTRS_MAP_NOWAIT;
  if ((flags & ~kFlags) != 0) return EINVAL;
  return guarded(*brick, [&] {
    auto made = std::make_unique<rtrs_map>();
    auto blocks = brick->remote->map(id, 1, flags | rnbd::wire::kMapRead, kNever);
    if (!blocks) return blocks.error();
    made->brick = brick;
    made->block = std::move(blocks->front());
    *map = made.get();
    const std::lock_guard lock{brick->mutex};
    brick->maps.insert(std::move(made));
    return 0;
  });
}

int rtrs_brick_unmap(rtrs_map* map) {
  return guarded(*map->brick, [&] {
    const auto taken = take(*map);
    return taken->brick->remote->unmap(taken->block, /*drop=*/false, kNever);
  });
}

int rtrs_brick_read(rtrs_map* map, uint64_t offset, void* into, size_t length) {
  return guarded(*map->brick, [&] {
    return RemoteBrick::read(map->block, offset, {static_cast<std::byte*>(into), length}, kNever);
  });
}

int rtrs_brick_write(rtrs_map* map, uint64_t offset, const void* from, size_t length) {
  return guarded(*map->brick, [&] {
    return RemoteBrick::write(map->block, offset, {static_cast<const std::byte*>(from), length},
                              kNever);
  });
}

int rtrs_brick_sync(rtrs_brick* brick, const rtrs_brick_range* ranges, int count) {
  if (count < 0 || (ranges == nullptr && count != 0)) return EINVAL;
  return guarded(*brick, [&] {
    std::vector<rnbd::wire::SyncRange> all;
    for (const rtrs_brick_range& range : std::span{ranges, static_cast<std::size_t>(count)})
      all.push_back({range.address, range.length});
    if (const int error = settle(*brick); error != 0) return error;
    return brick->remote->sync(all, kNever);
  });
}

int rtrs_brick_list(rtrs_brick* brick, enum rtrs_brick_listing what, uint64_t first,
                    rtrs_brick_extent* extents, int count, int* found) {
  *found = 0;
  if (count < 0 || what > RTRS_BRICK_RECALLED) return EINVAL;
  return guarded(*brick, [&] {
    const auto all = brick->remote->list(static_cast<rnbd::wire::BrickListing>(what), kNever);
    if (!all) return all.error();
    for (const rnbd::wire::BrickExtent& one : *all) {
      const std::uint64_t blocks = one.blocks;
      const std::uint64_t skipped =
          first > one.id ? (first - one.id + RTRS_BRICK_BLOCK - 1) / RTRS_BRICK_BLOCK : 0;
      if (skipped >= blocks || *found == count) continue;
      extents[(*found)++] = {one.id + skipped * RTRS_BRICK_BLOCK, blocks - skipped, one.flags};
    }
    return 0;
  });
}

int rtrs_brick_recover(rtrs_brick* brick, rtrs_error* error) {
  if (brick->birthplace.left())
    return tell({RTRS_FORKED, rtrs_strerror(RTRS_FORKED)}, error), RTRS_FORKED;
  return guarded(*brick, [&] {
    const auto recovered = brick->remote->recover(kNever);
    if (!recovered) return tell(recovered.error(), error), recovered.error().error;
    return 0;
  });
}

void rtrs_brick_on_recall(rtrs_brick* brick, void (*wanted)(void* context), void* context) {
  guarded(*brick, [&] {
    if (wanted == nullptr)
      brick->remote->on_recall(nullptr);
    else
      brick->remote->on_recall([wanted, context] { wanted(context); });
    return 0;
  });
}
