// SPDX-License-Identifier: BSD-3-Clause
// Which texts can name a host, and what is said of a name without an address.
#include "rdma/host_name.hpp"

#include <doctest/doctest.h>

#include <cerrno>

namespace rtrs::host_name_test {
namespace {

const std::string kLabel(63, 'a');

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("a text that can never name a host is told from one that has no address yet") {
  for (const std::string& good :
       {std::string{"a"}, std::string{"storage.example.org."}, std::string{"10.0.0.1"},
        std::string{"fe80::1%eth0"}, kLabel + '.' + kLabel + '.' + kLabel}) {
    CAPTURE(good);
    CHECK(complaint_about_host_name(good).empty());
  }
  const std::string four = kLabel + '.' + kLabel + '.' + kLabel + '.' + kLabel;
  CHECK(has(complaint_about_host_name(four), "at most 253 characters, and this one has 255"));
  CHECK(has(complaint_about_host_name(kLabel + 'a'), "at most 63"));
  CHECK(has(complaint_about_host_name("a..b"), "missing"));
  CHECK(has(complaint_about_host_name(".a"), "missing"));
}

TEST_CASE("that there is no such name is another failure than that nobody could be asked") {
  const Failure unknown = no_address_of("storge", EAI_NONAME);
  CHECK(unknown.error == ENXIO);
  CHECK(unknown.text ==
        "cannot resolve host 'storge': there is no such name (check the spelling, or use a numeric "
        "address)");
  const Failure silent = no_address_of("storage", EAI_AGAIN);
  CHECK(silent.error == EHOSTUNREACH);
  CHECK(has(silent.text, "cannot resolve host 'storage': no name server answers"));
  CHECK_FALSE(has(silent.text, "spelling"));
}

}  // namespace
}  // namespace rtrs::host_name_test
