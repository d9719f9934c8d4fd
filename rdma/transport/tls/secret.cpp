// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/tls/secret.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace rtrs::tls {
namespace {

/// Places of kMost bytes each in pages that no core dump has.
class Places {
 public:
  std::byte* take() {
    const std::lock_guard lock{mutex_};
    if (free_.empty()) add_pages();
    std::byte* const place = free_.back();
    free_.pop_back();
    return place;
  }
  void give_back(std::byte* place) {
    const std::lock_guard lock{mutex_};
    free_.push_back(place);
  }

 private:
  void add_pages() {
    constexpr std::size_t kPages = 64 * 1024;
    void* const pages =
        mmap(nullptr, kPages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) throw std::bad_alloc{};
    madvise(pages, kPages, MADV_DONTDUMP);
    for (std::size_t at = 0; at < kPages; at += Secret::kMost) {
      free_.push_back(static_cast<std::byte*>(pages) + at);
    }
  }

  std::mutex mutex_;
  std::vector<std::byte*> free_;
};

/// Never destroyed: there may be keys until the process ends.
Places& places() {
  static auto* const all = new Places;
  return *all;
}

}  // namespace

void forget(std::span<std::byte> bytes) {
  if (!bytes.empty()) explicit_bzero(bytes.data(), bytes.size());
}

Secret::Secret(std::span<const std::byte> bytes) {
  const std::size_t size = std::min(bytes.size(), kMost);
  bytes_ = {places().take(), size};
  if (size > 0) std::memcpy(bytes_.data(), bytes.data(), size);
}

Secret::Secret(Secret&& other) noexcept : bytes_{std::exchange(other.bytes_, {})} {}

Secret& Secret::operator=(Secret&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

Secret::~Secret() {
  if (bytes_.data() == nullptr) return;
  forget(bytes_);
  places().give_back(bytes_.data());
}

}  // namespace rtrs::tls
