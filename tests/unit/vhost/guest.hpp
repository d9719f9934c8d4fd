// SPDX-License-Identifier: BSD-3-Clause
// The memory of a guest for tests: a file, mapped by the test as well.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "bridge/vhost/guest_memory.hpp"

namespace vhost_test {

using rnbd::vhost::GuestMemory;
using rnbd::vhost::MemoryRegion;
using rnbd::vhost::MemoryTable;

inline constexpr std::size_t kPage = 4096;

/// A file of so many bytes.
class MemoryFile {
 public:
  explicit MemoryFile(std::size_t size) : size_{size}, fd_{::memfd_create("guest", MFD_CLOEXEC)} {
    resize(size);
    at_ = static_cast<std::byte*>(
        ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0));
  }
  ~MemoryFile() { ::munmap(at_, size_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  bool resize(std::size_t size) const {
    return ::ftruncate(fd_.get(), static_cast<off_t>(size)) == 0;
  }
  rtrs::OwnedFd descriptor() const { return rtrs::OwnedFd{::dup(fd_.get())}; }
  std::byte* at(std::uint64_t place) const { return at_ + place; }
  template <class T>
  void put(std::uint64_t place, T value) const {
    std::memcpy(at(place), &value, sizeof(value));
  }
  template <class T>
  T get(std::uint64_t place) const {
    T value;
    std::memcpy(&value, at(place), sizeof(value));
    return value;
  }

 private:
  std::size_t size_;
  rtrs::OwnedFd fd_;
  std::byte* at_ = nullptr;
};

/// The table with these regions, all of one file.
inline auto map(const MemoryFile& file, const std::vector<MemoryRegion>& regions) {
  MemoryTable table{.count = static_cast<std::uint32_t>(regions.size())};
  std::vector<rtrs::OwnedFd> files;
  for (std::size_t i = 0; i < regions.size(); ++i) {
    table.regions.at(i) = regions[i];
    files.push_back(file.descriptor());
  }
  return GuestMemory::map(table, std::move(files));
}

}  // namespace vhost_test
