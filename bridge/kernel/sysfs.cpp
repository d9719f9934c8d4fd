// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/kernel/sysfs.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <string_view>
#include <system_error>

namespace rnbd::kernel {
namespace {

constexpr std::uint64_t kSectorSize = 512;

std::string first_line(const std::filesystem::path& file) {
  std::ifstream in{file};
  std::string line;
  std::getline(in, line);
  return line;
}

std::uint64_t number_in(const std::filesystem::path& file) {
  const std::string line = first_line(file);
  std::uint64_t number = 0;
  std::from_chars(line.data(), line.data() + line.size(), number);
  return number;
}

std::optional<unsigned> index_of(std::string_view name) {
  if (!name.starts_with("nbd")) return std::nullopt;
  name.remove_prefix(3);
  unsigned index = 0;
  const auto [end, error] = std::from_chars(name.begin(), name.end(), index);
  if (error != std::errc{} || end != name.end()) return std::nullopt;
  return index;
}

}  // namespace

std::filesystem::path Sysfs::device(unsigned index) const {
  return root_ / ("nbd" + std::to_string(index));
}

std::string Sysfs::backend(unsigned index) const { return first_line(device(index) / "backend"); }

int Sysfs::lock(unsigned index) const {
  const int fd = ::open((device(index) / "backend").c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0 || ::flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
  const int error = errno;
  ::close(fd);
  errno = error;
  return -1;
}

std::vector<Mapped> Sysfs::mapped() const {
  std::vector<Mapped> all;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator{root_, error}) {
    const auto index = index_of(entry.path().filename().native());
    if (!index) continue;
    std::string text = backend(*index);
    if (!text.empty()) all.push_back({*index, std::move(text)});
  }
  return all;
}

std::uint64_t Sysfs::size(unsigned index) const {
  return number_in(device(index) / "size") * kSectorSize;
}

bool Sysfs::read_only(unsigned index) const { return number_in(device(index) / "ro") != 0; }

/// Source: Documentation/block/stat.rst of Linux.
Flow Sysfs::flow(unsigned index) const {
  std::ifstream in{device(index) / "stat"};
  std::uint64_t fields[15] = {};
  for (std::uint64_t& field : fields) in >> field;
  return {.ended = fields[0] + fields[4] + fields[11], .under_way = fields[8]};
}

tl::expected<void, rtrs::Failure> Sysfs::set_queue(unsigned index, const std::string& attribute,
                                                   const std::string& value) const {
  const std::filesystem::path file = device(index) / "queue" / attribute;
  const int fd = ::open(file.c_str(), O_WRONLY | O_CLOEXEC);
  const ssize_t written = fd < 0 ? -1 : ::write(fd, value.data(), value.size());
  const int error = errno;
  if (fd >= 0) ::close(fd);
  if (written == static_cast<ssize_t>(value.size())) return {};
  return tl::unexpected(rtrs::Failure{
      error, "cannot write " + value + " to " + file.native() + ": " + std::strerror(error)});
}

std::uint64_t Sysfs::queue(unsigned index, const std::string& attribute) const {
  return number_in(device(index) / "queue" / attribute);
}

}  // namespace rnbd::kernel
