// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/library/gathered_data.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "rdma/library/large_memory.hpp"

namespace rtrs::library {

int GatheredData::begin(std::uint64_t length, std::uint32_t piece_size) {
  clear();
  if (!budget_.take(length)) return ENOBUFS;
  memory_ = large_allocate(length);
  if (memory_ == nullptr) {
    budget_.give_back(length);
    return ENOBUFS;
  }
  length_ = length;
  piece_size_ = piece_size;
  missing_ = (length + piece_size - 1) / piece_size;
  present_.assign(missing_, false);
  expected_.assign(missing_, false);
  return 0;
}

/// Of the piece that begins there; 0 = none does.
std::size_t GatheredData::length_of(std::uint64_t offset) const {
  if (offset >= length_ || offset % piece_size_ != 0) return 0;
  return std::min<std::uint64_t>(piece_size_, length_ - offset);
}

MutableBytes GatheredData::expect(std::uint64_t offset) {
  const std::size_t length = length_of(offset);
  if (length == 0) return {};
  const std::uint64_t index = offset / piece_size_;
  if (present_[index] || expected_[index]) return {};
  expected_[index] = true;
  return {memory_ + offset, length};
}

MutableBytes GatheredData::place_elsewhere(std::uint64_t offset, const std::byte* at) const {
  const std::size_t length = length_of(offset);
  if (length == 0 || at == memory_ + offset || !expected_[offset / piece_size_]) return {};
  return {memory_ + offset, length};
}

int GatheredData::add(std::uint64_t offset, ConstBytes piece) {
  if (piece.empty() || piece.size() != length_of(offset)) return EBADMSG;
  const std::uint64_t index = offset / piece_size_;
  if (present_[index]) return 0;
  if (piece.data() != memory_ + offset) std::memcpy(memory_ + offset, piece.data(), piece.size());
  present_[index] = true;
  --missing_;
  return 0;
}

void* GatheredData::take() {
  if (empty()) return nullptr;
  budget_.give_back(length_);
  return std::exchange(memory_, nullptr);
}

void GatheredData::clear() {
  large_free(take());
  present_.clear();
  expected_.clear();
}

}  // namespace rtrs::library
