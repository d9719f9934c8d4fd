// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/vhost/split_ring.hpp"

#include <atomic>
#include <bit>

#include "bridge/vhost/guest_memory.hpp"

// The guest's integers are little-endian, and are read by atomic loads of their whole width.
static_assert(std::endian::native == std::endian::little, "rings of virtio 1 are little-endian");

namespace rnbd::vhost {
namespace {

constexpr std::uint16_t kNext = 1;
constexpr std::uint16_t kWrite = 2;
constexpr std::uint16_t kIndirect = 4;

constexpr std::uint16_t kNoInterrupt = 1;
constexpr std::uint16_t kNoNotify = 1;

constexpr std::size_t kDescriptor = 16;  ///< bytes

/// Reads memory of the guest once: a compiler may not read it again.
template <class T>
T load(const void* from, int order = __ATOMIC_RELAXED) {
  return __atomic_load_n(static_cast<const T*>(from), order);
}

template <class T>
void store(void* to, T value, int order = __ATOMIC_RELAXED) {
  __atomic_store_n(static_cast<T*>(to), value, order);
}

std::uint16_t* number_at(std::byte* part, std::size_t offset) {
  return reinterpret_cast<std::uint16_t*>(part + offset);
}

bool is_aligned(const std::byte* part, std::uintptr_t to) {
  return reinterpret_cast<std::uintptr_t>(part) % to == 0;
}

/// The driver wants a call if its event lies among those between `before` and `now`.
bool passes(std::uint16_t event, std::uint16_t before, std::uint16_t now) {
  return static_cast<std::uint16_t>(now - event - 1) < static_cast<std::uint16_t>(now - before);
}

}  // namespace

struct SplitRing::Descriptor {
  std::uint64_t address = 0;
  std::uint32_t length = 0;
  std::uint16_t flags = 0;
  std::uint16_t next = 0;

  static Descriptor at(const std::byte* from) {
    return {load<std::uint64_t>(from), load<std::uint32_t>(from + 8),
            load<std::uint16_t>(from + 12), load<std::uint16_t>(from + 14)};
  }
};

bool SplitRing::is_possible(std::uint32_t size, const Parts& parts) {
  return size != 0 && size <= 1U << 15 && std::has_single_bit(size) &&
         parts.descriptors != nullptr && parts.available != nullptr && parts.used != nullptr &&
         is_aligned(parts.descriptors, 16) && is_aligned(parts.available, 2) &&
         is_aligned(parts.used, 4);
}

SplitRing::SplitRing(std::uint32_t size, const Parts& parts, std::uint16_t base, Features features)
    : size_{static_cast<std::uint16_t>(size)},
      parts_{parts},
      features_{features},
      taken_{base},
      seen_{base} {
  used_ = published_ = load<std::uint16_t>(used_index());
}

std::uint16_t* SplitRing::available_flags() const { return number_at(parts_.available, 0); }
std::uint16_t* SplitRing::available_index() const { return number_at(parts_.available, 2); }
std::uint16_t* SplitRing::used_flags() const { return number_at(parts_.used, 0); }
std::uint16_t* SplitRing::used_index() const { return number_at(parts_.used, 2); }
std::uint16_t* SplitRing::used_event() const {
  return number_at(parts_.available, 4 + 2 * std::size_t{size_});
}
std::uint16_t* SplitRing::available_event() const {
  return number_at(parts_.used, 4 + 8 * std::size_t{size_});
}

// ---- Chains -------------------------------------------------------------------------------------

bool SplitRing::has_more() const {
  return load<std::uint16_t>(available_index(), __ATOMIC_ACQUIRE) != taken_;
}

SplitRing::Taken SplitRing::take(Chain& chain, const GuestMemory& memory) {
  if (seen_ == taken_) {
    seen_ = load<std::uint16_t>(available_index(), __ATOMIC_ACQUIRE);
    if (seen_ == taken_) return Taken::none;
    if (static_cast<std::uint16_t>(seen_ - taken_) > size_) return Taken::broken;
  }
  const std::size_t place = taken_ % size_;
  const auto head = load<std::uint16_t>(parts_.available + 4 + 2 * place);
  if (!collect(chain, head, memory)) return Taken::broken;
  ++taken_;
  return Taken::chain;
}

bool SplitRing::collect(Chain& chain, std::uint16_t head, const GuestMemory& memory) {
  chain.head = head;
  chain.pieces.clear();
  chain.readable = 0;
  std::uint16_t place = head;
  for (std::size_t count = 0; count < size_; ++count) {
    if (place >= size_) return false;
    const auto descriptor = Descriptor::at(parts_.descriptors + kDescriptor * place);
    if ((descriptor.flags & kIndirect) != 0) return collect_indirect(chain, descriptor, memory);
    if (!append(chain, descriptor)) return false;
    if ((descriptor.flags & kNext) == 0) return true;
    place = descriptor.next;
  }
  return false;  // a loop
}

bool SplitRing::collect_indirect(Chain& chain, const Descriptor& table, const GuestMemory& memory) {
  const std::size_t size = table.length / kDescriptor;
  if (!features_.indirect || (table.flags & kNext) != 0 || table.length % kDescriptor != 0 ||
      size == 0 || size > kMostPieces) {
    return false;
  }
  table_.resize(table.length);
  if (!memory.read(table.address, table_)) return false;
  std::size_t place = 0;
  for (std::size_t count = 0; count < size; ++count) {
    if (place >= size) return false;
    const auto descriptor = Descriptor::at(table_.data() + kDescriptor * place);
    if ((descriptor.flags & kIndirect) != 0 || !append(chain, descriptor)) return false;
    if ((descriptor.flags & kNext) == 0) return true;
    place = descriptor.next;
  }
  return false;
}

/// False: the chain is too long, or the device is to read behind what it is to write.
bool SplitRing::append(Chain& chain, const Descriptor& descriptor) {
  const bool to_write = (descriptor.flags & kWrite) != 0;
  if (chain.pieces.size() >= kMostPieces) return false;
  if (!to_write && chain.readable != chain.pieces.size()) return false;
  chain.pieces.push_back({descriptor.address, descriptor.length});
  if (!to_write) ++chain.readable;
  return true;
}

// ---- Their ends ---------------------------------------------------------------------------------

void SplitRing::put(std::uint16_t head, std::uint32_t written) {
  std::byte* const place =
      parts_.used + 4 + 8 * std::size_t{static_cast<std::uint16_t>(used_ % size_)};
  store<std::uint32_t>(place, head);
  store<std::uint32_t>(place + 4, written);
  ++used_;
}

bool SplitRing::publish() {
  if (used_ == published_) return false;
  store<std::uint16_t>(used_index(), used_, __ATOMIC_RELEASE);
  // The driver writes its wish, and then looks at the index: one of both sees the other's.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const std::uint16_t before = published_;
  published_ = used_;
  if (!features_.event_index) {
    return (load<std::uint16_t>(available_flags()) & kNoInterrupt) == 0;
  }
  if (!called_) return called_ = true;
  return passes(load<std::uint16_t>(used_event()), before, used_);
}

void SplitRing::want_kicks(bool wanted) {
  if (features_.event_index) {
    // The driver kicks once when it passes this event, and so not at all while it stays behind.
    if (wanted) store<std::uint16_t>(available_event(), taken_);
  } else {
    store<std::uint16_t>(used_flags(), wanted ? 0 : kNoNotify);
  }
  if (wanted) std::atomic_thread_fence(std::memory_order_seq_cst);
}

}  // namespace rnbd::vhost
