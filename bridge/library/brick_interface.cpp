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
#include "rdma/library/gate.hpp"
#include "rdma/library/include/rtrs.h"
#include "rdma/library/options.hpp"

using rnbd::MappedBlock;
using rnbd::RemoteBrick;
using rtrs::Failure;
using rtrs::library::Gate;
using rtrs::library::NoCancellation;
using rtrs::library::tell;
using rtrs::library::Visit;

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
/// Threads: any that are inside the gate.
struct rtrs_brick {
  Gate& gate() { return gate_; }
  /// Calls give up when the gate is closed.
  rtrs::Interrupt closing() {
    return {[](void* gate) { return static_cast<Gate*>(gate)->is_closed(); }, &gate_};
  }

  Gate gate_;
  std::shared_ptr<rnbd::Session> session;
  std::unique_ptr<RemoteBrick> remote;
  std::mutex mutex;  ///< guards the maps
  std::condition_variable settled;
  std::set<std::unique_ptr<rtrs_map>> maps;
};

namespace {

const rtrs::Interrupt kNever{};

/// No exception may pass the C interface, and nobody may be inside a brick that is gone, or was
/// left behind by fork(). `brick` may be null.
template <class Call>
int guarded(rtrs_brick* brick, Call call) noexcept {
  const Visit visit{brick};
  if (visit.refusal() != 0) return visit.refusal();
  try {
    const int error = call();
    return error == EINTR ? ECANCELED : error;
  } catch (const std::bad_alloc&) {
    return ENOMEM;
  } catch (const std::exception&) {
    return EAGAIN;
  }
}

rtrs_brick* brick_of(rtrs_map* map) { return map != nullptr ? map->brick : nullptr; }

tl::expected<std::unique_ptr<rtrs_brick>, Failure> open(const char* text,
                                                        const rtrs_client_options* given) {
  const auto options = rtrs::library::read_options(given);
  if (!options) return tl::unexpected(options.error());
  const auto uri = rnbd::parse_device_uri(text != nullptr ? text : "");
  if (!uri) return tl::unexpected(Failure{EINVAL, uri.error()});
  if (uri->device.empty() || !uri->options.empty() || !uri->servers.empty()) {
    return tl::unexpected(
        Failure{EINVAL, "a brick has one server and a name; write rnbd+tcp://HOST[:PORT]/EXPORT"});
  }
  auto settings = rtrs::library::client_settings(*options, "");
  if (!settings) return tl::unexpected(settings.error());
  settings->paths = {uri->path()};
  settings->features = rtrs::wire::kFeatureExactlyOnce | rtrs::wire::kFeatureUserMessages |
                       rtrs::wire::kFeatureAccessNotice | rtrs::wire::kFeatureRaces |
                       rnbd::kBrickFeatures;
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
  const int error = RemoteBrick::settle(map.block, brick.closing());
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
    const NoCancellation no_cancellation;
    auto brick = open(uri, options);
    if (!brick) return tell(brick.error(), error), nullptr;
    return brick->release();
  } catch (const std::exception& exception) {
    return tell({ENOMEM, exception.what()}, error), nullptr;
  }
}

void rtrs_brick_close(rtrs_brick* brick) {
  if (brick == nullptr || brick->gate().left_behind()) return;
  const NoCancellation no_cancellation;
  brick->gate().close();
  brick->gate().wait_until_empty();
  delete brick;
}

int rtrs_brick_describe(rtrs_brick* brick, rtrs_brick_info* info) {
  return guarded(brick, [&] {
    const auto now = brick->remote->info(brick->closing());
    if (!now) return now.error();
    auto result = told(*now);
    result.size = std::min(info->size, sizeof(result));
    std::memcpy(info, &result, result.size);
    return 0;
  });
}

int rtrs_brick_alloc(rtrs_brick* brick, uint64_t id, uint32_t count, unsigned flags) {
  if ((flags & ~RTRS_BRICK_ALL) != 0) return EINVAL;
  return guarded(brick,
                 [&] { return brick->remote->alloc(id, count, flags != 0, brick->closing()); });
}

int rtrs_brick_free(rtrs_brick* brick, uint64_t id, uint32_t count, unsigned flags) {
  if ((flags & ~RTRS_BRICK_ALL) != 0) return EINVAL;
  return guarded(brick,
                 [&] { return brick->remote->free(id, count, flags != 0, brick->closing()); });
}

int rtrs_brick_map(rtrs_brick* brick, uint64_t id, unsigned flags, rtrs_map** map) {
  *map = nullptr;
  constexpr unsigned kFlags =
      RTRS_MAP_WRITE | RTRS_MAP_OTHERS_READ | RTRS_MAP_OTHERS_WRITE | RTRS_MAP_NOWAIT;
  if ((flags & ~kFlags) != 0) return EINVAL;
  return guarded(brick, [&] {
    auto made = std::make_unique<rtrs_map>();
    auto blocks = brick->remote->map(id, 1, flags | rnbd::wire::kMapRead, brick->closing());
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
  return guarded(brick_of(map), [&] {
    const auto taken = take(*map);
    return taken->brick->remote->unmap(taken->block, /*drop=*/false, taken->brick->closing());
  });
}

int rtrs_brick_read(rtrs_map* map, uint64_t offset, void* into, size_t length) {
  return guarded(brick_of(map), [&] {
    return RemoteBrick::read(map->block, offset, {static_cast<std::byte*>(into), length},
                             map->brick->closing());
  });
}

int rtrs_brick_write(rtrs_map* map, uint64_t offset, const void* from, size_t length) {
  return guarded(brick_of(map), [&] {
    return RemoteBrick::write(map->block, offset, {static_cast<const std::byte*>(from), length},
                              map->brick->closing());
  });
}

int rtrs_brick_sync(rtrs_brick* brick, const rtrs_brick_range* ranges, int count) {
  if (count < 0 || (ranges == nullptr && count != 0)) return EINVAL;
  return guarded(brick, [&] {
    std::vector<rnbd::wire::SyncRange> all;
    for (const rtrs_brick_range& range : std::span{ranges, static_cast<std::size_t>(count)})
      all.push_back({range.address, range.length});
    if (const int error = settle(*brick); error != 0) return error;
    return brick->remote->sync(all, brick->closing());
  });
}

int rtrs_brick_list(rtrs_brick* brick, enum rtrs_brick_listing what, uint64_t first,
                    rtrs_brick_extent* extents, int count, int* found) {
  *found = 0;
  if (count < 0 || what > RTRS_BRICK_RECALLED) return EINVAL;
  return guarded(brick, [&] {
    const auto all =
        brick->remote->list(static_cast<rnbd::wire::BrickListing>(what), brick->closing());
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
  bool told = false;
  const int failed = guarded(brick, [&] {
    const auto recovered = brick->remote->recover(brick->closing());
    if (recovered) return 0;
    tell(recovered.error(), error);
    told = true;
    return recovered.error().error;
  });
  if (failed != 0 && !told) tell({failed, rtrs_strerror(failed)}, error);
  return failed;
}

void rtrs_brick_on_recall(rtrs_brick* brick, void (*wanted)(void* context), void* context) {
  guarded(brick, [&] {
    if (wanted == nullptr)
      brick->remote->on_recall(nullptr);
    else
      brick->remote->on_recall([wanted, context] { wanted(context); });
    return 0;
  });
}
