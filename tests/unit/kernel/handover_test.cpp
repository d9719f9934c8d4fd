// SPDX-License-Identifier: BSD-3-Clause
// A legacy to a successor arrives once, or not at all.
#include "bridge/kernel/handover.hpp"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>

namespace rnbd::kernel {
namespace {

int file_with(const std::string& text) {
  const int fd = ::memfd_create("test", MFD_CLOEXEC);
  REQUIRE(::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  return fd;
}

TEST_CASE("what is left behind arrives as it was, whatever bytes it has") {
  std::string unread{"a\n\0b", 4};
  unread += std::string(256 * 1024, '\xff');
  const int fd = leave_behind({7, "rnbd:1234:one", unread});
  REQUIRE(fd >= 0);
  const auto left = take_left_behind(fd);
  REQUIRE(left);
  CHECK(left->index == 7);
  CHECK(left->identifier == "rnbd:1234:one");
  CHECK(left->unread == unread);
}

TEST_CASE("nobody takes it twice: the requests behind it are served by then") {
  const int fd = leave_behind({0, "rnbd:1234:one", ""});
  const int again = ::dup(fd);
  CHECK(take_left_behind(fd));
  CHECK_FALSE(take_left_behind(again));
}

TEST_CASE("other versions, and what is cut short or too long, are not taken") {
  const std::string good = "rnbd hand-over 1\n3\nrnbd:1:a\n2\nxy";
  REQUIRE(take_left_behind(file_with(good)));
  for (std::size_t size = 0; size < good.size(); ++size) {
    CHECK_FALSE(take_left_behind(file_with(good.substr(0, size))));
  }
  CHECK_FALSE(take_left_behind(file_with(good + "z")));
  CHECK_FALSE(take_left_behind(file_with("rnbd hand-over 2\n3\nrnbd:1:a\n2\nxy")));
  CHECK_FALSE(take_left_behind(file_with("rnbd hand-over 1\n-3\nrnbd:1:a\n2\nxy")));
  CHECK_FALSE(take_left_behind(-1));
}

}  // namespace
}  // namespace rnbd::kernel
