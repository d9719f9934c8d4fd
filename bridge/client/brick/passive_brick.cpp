// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/brick/passive_brick.hpp"

#include <pthread.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "bridge/client/interruptible_wait.hpp"
#include "bridge/protocol/printable.hpp"

namespace rnbd {
namespace {

/// Between two looks whether the memory path lives.
constexpr std::chrono::milliseconds kLookAgain{500};
/// Behind an attempt that failed.
constexpr std::chrono::milliseconds kRetryPause{250};
/// Memory of the brick is full of maps: others are asked to give some back.
constexpr std::chrono::seconds kNoMemory{1};

MapCache::Block block_of(std::uint64_t offset) { return offset / wire::kBrickBlock; }

/// Where memory has less room than the brick has blocks, half of it stays free of maps.
std::size_t most_maps(const wire::BrickInfoResponse& info) {
  const std::uint64_t memory = info.in_memory;
  const std::uint64_t room = info.blocks > memory ? memory / 2 : memory;
  return static_cast<std::size_t>(std::min<std::uint64_t>(room, info.max_maps));
}

}  // namespace

tl::expected<std::shared_ptr<PassiveBrick>, Failure> PassiveBrick::open(
    const RemoteDevice& device, Session& session, rtrs::Log log, const Interrupt& interrupt) {
  OpenOptions options;
  options.access = wire::AccessMode::read_only;  // it shares what the device has
  const auto paths = session.client().paths();
  const auto used = std::ranges::find_if(paths, &rtrs::PathStatus::in_use);
  const auto& path = used != paths.end() ? used->address : paths.front().address;
  auto brick = RemoteBrick::open(session, device.name(), options, path, interrupt);
  if (!brick) return tl::unexpected(brick.error());
  const auto info = (*brick)->info(interrupt);
  if (!info) return tl::unexpected(Failure{info.error(), describe_error(info.error())});
  return std::shared_ptr<PassiveBrick>{new PassiveBrick{*std::move(brick), *info, std::move(log)}};
}

PassiveBrick::PassiveBrick(std::unique_ptr<RemoteBrick> brick, const wire::BrickInfoResponse& info,
                           rtrs::Log log)
    : log_{std::move(log)},
      brick_{std::move(brick)},
      durability_{static_cast<wire::Durability>(info.durability)},
      cache_{most_maps(info)} {
  brick_->on_recall([this] {
    const std::lock_guard lock{mutex_};
    recalled_ = true;
    wake_.notify_all();
  });
  thread_ = std::thread{[this] { run(); }};
}

PassiveBrick::~PassiveBrick() {
  brick_->on_recall(nullptr);
  {
    const std::lock_guard lock{mutex_};
    stopping_ = true;
    wake_.notify_all();
  }
  thread_.join();
  // A write of unknown fate may still land: only behind the CLOSE it cannot.
  if (!brick_->alive() && cache_.size() > 0) {
    brick_->device().distrust();
    if (log_) {
      log_(rtrs::LogLevel::warning,
           in_quotes(brick_->device().name()) +
               ": its users have left before the server has said that a lost memory path is over; "
               "who has come meanwhile and gets EIO must connect again");
    }
  }
  if (log_) {
    log_(rtrs::LogLevel::info, in_quotes(brick_->device().name()) + ": " +
                                   std::to_string(one_sided()) +
                                   " requests were one-sided, without the server's processor");
  }
}

// ---- Requests ----------------------------------------------------------------------------------

MapCache::Pin PassiveBrick::enter(std::uint64_t offset, bool write) {
  const std::lock_guard lock{mutex_};
  if (!brick_->alive()) {
    if (maps_ != Maps::revoked) wake_.notify_all();
    return nullptr;
  }
  MapCache::Pin pin = cache_.enter(block_of(offset), write);
  if (cache_.has_news()) wake_.notify_all();
  return pin;
}

void PassiveBrick::leave(const MapCache::Pin& pin) {
  const std::lock_guard lock{mutex_};
  if (cache_.leave(pin)) wake_.notify_all();
}

int PassiveBrick::read(std::uint64_t offset, rtrs::MutableBytes into, const Interrupt& interrupt) {
  const MapCache::Pin pin = enter(offset, /*write=*/false);
  if (pin == nullptr) return kTwoSided;
  const int error = RemoteBrick::read(pin->map, offset % wire::kBrickBlock, into, interrupt);
  leave(pin);
  if (error == 0) one_sided_.fetch_add(1, std::memory_order_relaxed);
  return error == 0 || error == EINTR ? error : kTwoSided;
}

int PassiveBrick::write(const MapCache::Pin& pin, std::uint64_t offset, rtrs::ConstBytes data,
                        bool seen, const Interrupt& interrupt) {
  const auto how = seen ? &RemoteBrick::write_settled : &RemoteBrick::write;
  const int error = how(pin->map, offset % wire::kBrickBlock, data, interrupt);
  if (error != 0) return error == EINTR ? error : kTwoSided;
  one_sided_.fetch_add(1, std::memory_order_relaxed);
  owe(offset, data.size());
  return 0;
}

bool PassiveBrick::concerns(std::uint64_t offset, std::uint64_t length) {
  if (length == 0) return false;
  const std::lock_guard lock{mutex_};
  const MapCache::Block first = block_of(offset);
  const MapCache::Block last = block_of(offset + length - 1);
  if (cache_.overlaps(first, last)) return true;
  for (MapCache::Block block = first; block <= last; ++block) cache_.enter(block, false);
  if (cache_.has_news()) wake_.notify_all();
  return false;
}

int PassiveBrick::before_two_sided(std::uint64_t offset, std::uint64_t length,
                                   const Interrupt& interrupt) {
  if (length == 0) return 0;
  return settle_range(block_of(offset), block_of(offset + length - 1), interrupt);
}

int PassiveBrick::settle(const Interrupt& interrupt) {
  return settle_range(0, ~MapCache::Block{0}, interrupt);
}

/// One read after the writes makes all of them on this path visible. If the key of a block is dead,
/// its writes are visible already.
int PassiveBrick::settle_range(MapCache::Block first, MapCache::Block last,
                               const Interrupt& interrupt) {
  std::unique_lock lock{mutex_};
  for (;;) {
    const MapCache::Duty duty = cache_.before_two_sided(first, last, brick_->alive());
    if (duty.before == MapCache::Before::go) return 0;
    if (duty.before == MapCache::Before::settle) {
      lock.unlock();
      const int error = RemoteBrick::settle(duty.pin->map, interrupt);
      lock.lock();
      if (cache_.leave(duty.pin)) wake_.notify_all();
      if (error == 0 || error == EINTR) return error;
      continue;
    }
    const std::uint64_t failures = failures_;
    const auto over = [&] { return !cache_.overlaps(first, last) || failures_ != failures; };
    wake_.notify_all();
    if (!interruptible_wait(changed_, lock, interrupt, over)) return EINTR;
    if (failures_ != failures && cache_.overlaps(first, last)) return EIO;
  }
}

void PassiveBrick::allow_writes() {
  const std::lock_guard lock{mutex_};
  cache_.allow_writes(true);
}

// ---- Durability --------------------------------------------------------------------------------

void PassiveBrick::owe(std::uint64_t offset, std::size_t length) {
  if (!has_sync()) return;
  const auto begin = static_cast<std::uint32_t>(offset % wire::kBrickBlock);
  const std::lock_guard lock{mutex_};
  debt_.owe(block_of(offset), begin, begin + static_cast<std::uint32_t>(length));
}

void PassiveBrick::note_change() {
  const std::lock_guard lock{mutex_};
  debt_.owe_unknown();
}

int PassiveBrick::begin_flush(FlushDebt::Debt& debt, const Interrupt& interrupt) {
  std::unique_lock lock{mutex_};
  if (!interruptible_wait(changed_, lock, interrupt, [this] { return !flushing_; })) return EINTR;
  flushing_ = true;
  debt = debt_.take();
  return 0;
}

void PassiveBrick::end_flush(const FlushDebt::Debt& debt, int error) {
  const std::lock_guard lock{mutex_};
  flushing_ = false;
  if (error != 0) debt_.give_back(debt);
  changed_.notify_all();
}

int PassiveBrick::sync(std::span<const wire::SyncRange> ranges, const Interrupt& interrupt) {
  return brick_->sync(ranges, interrupt);
}

// ---- The thread --------------------------------------------------------------------------------

Interrupt PassiveBrick::until_stopped() {
  return {[](void* self) { return static_cast<PassiveBrick*>(self)->stopping_.load(); }, this};
}

void PassiveBrick::run() {
  pthread_setname_np(pthread_self(), "rnbd-passive");
  Lock lock{mutex_};
  while (!stopping_) {
    if (!work(lock) && !stopping_) wake_.wait_for(lock, kLookAgain);
  }
}

/// False: there is nothing to do now.
bool PassiveBrick::work(Lock& lock) {
  if (maps_ != Maps::usable || !brick_->alive()) {
    recover(lock);
    return true;
  }
  if (std::exchange(recalled_, false)) give_back_recalled(lock);
  if (const MapCache::Pin pin = cache_.next_leaver()) {
    unmap(lock, pin);
    return true;
  }
  if (std::chrono::steady_clock::now() < no_maps_before_) return false;
  const auto wish = cache_.next_wish();
  if (wish) map(lock, *wish);
  return wish.has_value() || recalled_;
}

/// First the keys die; then the bytes are everybody's, and maps are made over a new path.
void PassiveBrick::recover(Lock& lock) {
  if (maps_ != Maps::revoked) {
    lock.unlock();
    const auto revoked = brick_->revoke(until_stopped());
    lock.lock();
    if (!revoked) {
      ++failures_;
      changed_.notify_all();
      wake_.wait_for(lock, kRetryPause);
      return;
    }
    maps_ = Maps::revoked;
    cache_.clear();
    changed_.notify_all();
  }
  const rtrs::PathAddress address = next_address();
  lock.unlock();
  const auto connected = brick_->reconnect(address, until_stopped());
  lock.lock();
  if (connected) {
    maps_ = Maps::usable;
  } else if (!stopping_) {
    wake_.wait_for(lock, kRetryPause);
  }
}

/// Those of the session's paths that work, one after the other.
rtrs::PathAddress PassiveBrick::next_address() {
  const auto paths = brick_->device().session().client().paths();
  std::vector<rtrs::PathAddress> working;
  for (const rtrs::PathStatus& path : paths)
    if (path.in_use) working.push_back(path.address);
  if (working.empty()) working.push_back(paths.front().address);
  return working[connects_++ % working.size()];
}

void PassiveBrick::give_back_recalled(Lock& lock) {
  lock.unlock();
  const auto wanted = brick_->list(wire::BrickListing::recalled, until_stopped());
  lock.lock();
  if (!wanted) return;
  for (const wire::BrickExtent& extent : *wanted) {
    for (std::uint64_t i = 0; i < extent.blocks; ++i) cache_.recall(block_of(extent.id) + i);
  }
}

void PassiveBrick::unmap(Lock& lock, const MapCache::Pin& pin) {
  lock.unlock();
  const int error = brick_->unmap(pin->map, /*drop=*/false, until_stopped());
  lock.lock();
  if (pin->state == MapCache::Entry::State::gone) return;
  if (error == 0) {
    cache_.unmapped(pin);
  } else {
    cache_.kept(pin);
    maps_ = Maps::in_doubt;  // the server knows better: all maps begin anew
  }
  changed_.notify_all();
}

void PassiveBrick::map(Lock& lock, MapCache::Block block) {
  const bool writes = cache_.allows_writes();
  const std::uint32_t flags = writes
                                  ? wire::kMapRead | wire::kMapWrite | wire::kMapOthersRead
                                  : wire::kMapRead | wire::kMapOthersRead | wire::kMapOthersWrite;
  lock.unlock();
  const auto mapped = brick_->map(block * wire::kBrickBlock, 1, flags, until_stopped());
  lock.lock();
  if (mapped) return cache_.mapped(mapped->front());
  cache_.refused(block);
  if (mapped.error() == EROFS) cache_.allow_writes(false);
  if (mapped.error() == EAGAIN) no_maps_before_ = std::chrono::steady_clock::now() + kNoMemory;
}

}  // namespace rnbd
