// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/verbs/windows.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "rdma/transport/verbs/send_queue.hpp"
#include "rdma/wire/ensure.hpp"

namespace rtrs::verbs {
namespace {

/// Room behind the data of a window for the header that is sent with them.
constexpr std::size_t kHeaderRoom = sizeof(Post::copy);
constexpr std::size_t kSlotAlignment = 64;

}  // namespace

tl::expected<void, Failure> Windows::reserve(unsigned count, std::uint32_t bytes) {
  windows_.resize(count);
  if (count == 0) return {};
  slot_size_ = (bytes + kHeaderRoom + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
  auto region = Region::allocate(domain_.handle(), count * slot_size_, /*peer_writes=*/true);
  if (!region) return tl::unexpected(region.error());
  slots_ = std::move(*region);
  return {};
}

void Windows::know(std::shared_ptr<const Region> region) {
  if (std::ranges::find(known_, region) == known_.end()) known_.push_back(std::move(region));
}

void Windows::forget(ConstBytes memory) {
  std::erase_if(known_, [memory](const auto& region) { return region->is(memory); });
}

/// Null: nothing that is registered contains it.
const Region* Windows::find(ConstBytes part) const {
  for (const auto& region : known_) {
    if (region->contains(part)) return region.get();
  }
  return nullptr;
}

RemoteMemory Windows::expose(std::uint32_t window, MutableBytes memory) {
  if (window >= windows_.size()) windows_.resize(window + 1);
  Window& w = windows_[window];
  RTRS_ENSURE(!w.exposed);
  const Region* region = find(memory);
  w = {memory, /*exposed=*/true, /*in_place=*/region != nullptr, /*sent_in_place=*/false};
  if (region != nullptr) {
    return {reinterpret_cast<std::uintptr_t>(memory.data()), region->remote_key(memory)};
  }
  RTRS_ENSURE(memory.size() + kHeaderRoom <= slot_size_);
  return {reinterpret_cast<std::uintptr_t>(slot(window).data()), slots_->remote_key()};
}

void Windows::collect(std::uint32_t window, std::uint32_t bytes) const {
  const Window& w = windows_[window];
  RTRS_ENSURE(w.exposed && bytes <= w.target.size());
  if (!w.in_place) std::memcpy(w.target.data(), slot(window).data(), bytes);
}

ConstBytes Windows::stage(std::uint32_t window, ConstBytes data) {
  if (data.empty()) return {};
  windows_[window].sent_in_place = find(data) != nullptr;
  if (windows_[window].sent_in_place) return data;
  RTRS_ENSURE(data.size() + kHeaderRoom <= slot_size_);
  const MutableBytes copy = slot(window).first(data.size());
  std::memcpy(copy.data(), data.data(), data.size());
  return copy;
}

MutableBytes Windows::landing(std::uint32_t window, MutableBytes into) {
  if (into.empty()) return {};
  windows_[window].sent_in_place = find(into) != nullptr;
  if (windows_[window].sent_in_place) return into;
  RTRS_ENSURE(into.size() <= slot_size_);
  return slot(window).first(into.size());
}

void Windows::append(ConstBytes staged, ConstBytes header) const {
  RTRS_ENSURE(is_staged(staged) && header.size() <= kHeaderRoom);
  const auto end = static_cast<std::size_t>(staged.data() - slots_->bytes().data()) + staged.size();
  std::memcpy(slots_->bytes().data() + end, header.data(), header.size());
}

std::uint32_t Windows::key_of(ConstBytes data) const {
  const Region* region = is_staged(data) ? slots_.get() : find(data);
  RTRS_ENSURE(region != nullptr);
  return region->local_key(data);
}

}  // namespace rtrs::verbs
