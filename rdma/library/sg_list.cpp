// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/library/sg_list.hpp"

#include <algorithm>
#include <cstring>

namespace rtrs::library {

SgList::SgList(std::span<const iovec> parts) : parts_{parts} {
  for (const iovec& part : parts_) size_ += part.iov_len;
}

/// Calls function(part of the memory, place in the range) for each part of a range.
template <class Function>
void SgList::for_each(std::uint64_t offset, std::size_t length, Function function) const {
  std::size_t done = 0;
  for (const iovec& part : parts_) {
    if (done == length) return;
    if (offset >= part.iov_len) {
      offset -= part.iov_len;
      continue;
    }
    const auto here = std::min<std::size_t>(part.iov_len - offset, length - done);
    function(MutableBytes{static_cast<std::byte*>(part.iov_base) + offset, here}, done);
    done += here;
    offset = 0;
  }
}

std::optional<MutableBytes> SgList::contiguous(std::uint64_t offset, std::size_t length) const {
  std::optional<MutableBytes> found;
  for_each(offset, length, [&](MutableBytes part, std::size_t) {
    if (part.size() == length) found = part;
  });
  if (length == 0) found = MutableBytes{};
  return found;
}

void SgList::gather(std::uint64_t offset, MutableBytes to) const {
  for_each(offset, to.size(), [&](MutableBytes part, std::size_t at) {
    std::memcpy(to.data() + at, part.data(), part.size());
  });
}

void SgList::scatter(std::uint64_t offset, ConstBytes from) const {
  for_each(offset, from.size(), [&](MutableBytes part, std::size_t at) {
    std::memcpy(part.data(), from.data() + at, part.size());
  });
}

}  // namespace rtrs::library
