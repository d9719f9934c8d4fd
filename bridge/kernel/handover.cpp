// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/kernel/handover.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <charconv>
#include <cstdint>
#include <string_view>

namespace rnbd::kernel {
namespace {

/// Its first byte changes when it is taken.
constexpr std::string_view kFormat = "rnbd hand-over 1\n";
constexpr char kTaken = '-';
/// Bytes; more than a connection receives ahead.
constexpr std::size_t kMost = 1024 * 1024;

bool write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

std::string read_all(int fd) {
  std::string text(kMost, '\0');
  std::size_t size = 0;
  while (size < kMost) {
    const ssize_t n = ::pread(fd, text.data() + size, kMost - size, static_cast<off_t>(size));
    if (n <= 0) break;
    size += static_cast<std::size_t>(n);
  }
  text.resize(size);
  return text;
}

/// Takes a line away.
std::optional<std::string_view> next_line(std::string_view& text) {
  const std::size_t end = text.find('\n');
  if (end == std::string_view::npos) return std::nullopt;
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(end + 1);
  return line;
}

template <typename Number>
std::optional<Number> number_in(std::optional<std::string_view> line) {
  Number number = 0;
  if (!line) return std::nullopt;
  const auto [end, error] = std::from_chars(line->data(), line->data() + line->size(), number);
  const bool whole = error == std::errc{} && end == line->data() + line->size();
  return whole ? std::optional{number} : std::nullopt;
}

std::optional<LeftBehind> parse(std::string_view text) {
  if (!text.starts_with(kFormat)) return std::nullopt;
  text.remove_prefix(kFormat.size());
  const auto index = number_in<unsigned>(next_line(text));
  const auto identifier = next_line(text);
  const auto size = number_in<std::size_t>(next_line(text));
  if (!index || !identifier || !size || *size != text.size()) return std::nullopt;
  return LeftBehind{*index, std::string{*identifier}, std::string{text}};
}

}  // namespace

int leave_behind(const LeftBehind& left) {
  const int fd = ::memfd_create("rnbd-hand-over", MFD_CLOEXEC);
  if (fd < 0) return -1;
  const std::string text = std::string{kFormat} + std::to_string(left.index) + "\n" +
                           left.identifier + "\n" + std::to_string(left.unread.size()) + "\n" +
                           left.unread;
  if (write_all(fd, text)) return fd;
  ::close(fd);
  return -1;
}

std::optional<LeftBehind> take_left_behind(int fd) {
  auto left = parse(read_all(fd));
  if (::pwrite(fd, &kTaken, 1, 0) != 1) left.reset();
  ::close(fd);
  return left;
}

}  // namespace rnbd::kernel
