// SPDX-License-Identifier: BSD-3-Clause
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>

#include "bridge/nbd/listener.hpp"

namespace address_test {

using namespace rnbd::nbd;

namespace {

bool refuses(const std::string& text, const std::string& advice) {
  const auto address = parse_nbd_address(text);
  if (address) return false;
  CAPTURE(address.error());
  return address.error().starts_with("'" + text + "': ") &&
         address.error().find(advice) != std::string::npos;
}

}  // namespace

TEST_CASE("address: Unix and TCP, names, IPv6, ports") {
  CHECK(parse_nbd_address("unix:/run/a.sock") == NbdAddress{.path = "/run/a.sock"});
  CHECK(parse_nbd_address("unix:a:b") == NbdAddress{.path = "a:b"});
  CHECK(parse_nbd_address("tcp:127.0.0.1") == NbdAddress{.host = "127.0.0.1", .port = 10809});
  CHECK(parse_nbd_address("tcp:host:1") == NbdAddress{.host = "host", .port = 1});
  CHECK(parse_nbd_address("tcp:host:0") == NbdAddress{.host = "host", .port = 0});
  CHECK(parse_nbd_address("tcp:host:65535") == NbdAddress{.host = "host", .port = 65535});
  CHECK(parse_nbd_address("tcp:[::1]") == NbdAddress{.host = "::1", .port = 10809});
  CHECK(parse_nbd_address("tcp:[fe80::1%eth0]:7") == NbdAddress{.host = "fe80::1%eth0", .port = 7});
  CHECK(parse_nbd_address("tcp:[fe80::1%25e]:7") == NbdAddress{.host = "fe80::1%e", .port = 7});
  CHECK(parse_nbd_address("tcp:*") == NbdAddress{.host = "", .port = 10809});
  CHECK(parse_nbd_address("tcp:*:1") == NbdAddress{.host = "", .port = 1});
}

TEST_CASE("address: what cannot be one is refused with a right one") {
  CHECK(refuses("", "write e.g. unix:/run/rnbd/disk0.sock or tcp:127.0.0.1:10809"));
  CHECK(refuses("/run/a.sock", "write e.g. unix:"));
  CHECK(refuses("udp:host:1", "write e.g. unix:"));
  CHECK(refuses("unix:", "the path is missing"));
  CHECK(refuses("unix:" + std::string(108, 'x'), "longer than 107 bytes"));
  CHECK(parse_nbd_address("unix:" + std::string(107, 'x')).has_value());
  CHECK(refuses("tcp:", "tcp:*:10809 for all"));
  CHECK(refuses("tcp::1", "tcp:*:10809 for all"));
  CHECK(refuses("tcp:[]:1", "tcp:*:10809 for all"));
  CHECK(refuses("tcp:::1", "brackets"));
  CHECK(refuses("tcp:[::1", "not closed"));
  CHECK(refuses("tcp:[fe80::1]", "write e.g. [fe80::1%eth0]"));
  CHECK(refuses("tcp:[::1]x", "not a number"));
  for (const char* port : {"", "65536", "-1", "+1", "1x", " 1", "0x10"}) {
    CHECK(refuses(std::string{"tcp:host:"} + port, "not a number from 0 to 65535"));
  }
}

TEST_CASE("listener: TCP on a free port says which, and who can reach it") {
  auto listeners = Listener::open({.host = "127.0.0.1", .port = 0});
  REQUIRE(listeners);
  REQUIRE(listeners->size() == 1);
  const std::string text = listeners->at(0).address();
  CHECK(text.starts_with("tcp:127.0.0.1:"));
  CHECK_FALSE(text.ends_with(":0"));
  CHECK_FALSE(listeners->at(0).reachable_from_outside());
  const auto taken = Listener::open(*parse_nbd_address(text));
  REQUIRE_FALSE(taken);
  CHECK(taken.error().text.starts_with(text + ": "));
  CHECK(taken.error().text.find("choose another port") != std::string::npos);
}

TEST_CASE("listener: the file of a Unix socket goes with it, also when it was moved") {
  std::string directory = std::filesystem::temp_directory_path() / "rnbd-listener-XXXXXX";
  REQUIRE(::mkdtemp(directory.data()) != nullptr);
  const std::string path = directory + "/a.sock";
  {
    auto opened = Listener::open({.path = path});
    REQUIRE(opened);
    std::vector<Listener> kept;
    kept.push_back(std::move(opened->at(0)));
    opened->clear();
    CHECK(std::filesystem::is_socket(path));
    CHECK(kept[0].address() == "unix:" + path);
    CHECK_FALSE(kept[0].reachable_from_outside());
    CHECK_FALSE(Listener::open({.path = path}).has_value());
    CHECK(std::filesystem::is_socket(path));
  }
  CHECK_FALSE(std::filesystem::exists(path));
  std::filesystem::remove(directory);
}

}  // namespace address_test
