// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/library/uri.hpp"

#include <doctest/doctest.h>

#include <cerrno>

#include "rdma/path_list.hpp"

namespace rtrs::library::uri_test {
namespace {

std::string path_of(std::string_view text) {
  const auto path = parse_path(text, TransportKind::tcp);
  REQUIRE(path);
  return to_string(*path);
}

std::string complaint(std::string_view text) {
  const auto uri = parse_uri(text);
  REQUIRE_FALSE(uri);
  CHECK(uri.error().error == EINVAL);
  return uri.error().text;
}

TEST_CASE("a path has a transport, perhaps a source, a host and a port") {
  CHECK(path_of("10.0.0.1") == "tcp:10.0.0.1:1234");
  CHECK(path_of("rdma:10.0.0.2@host:5") == "rdma:10.0.0.2@host:5");
  CHECK(path_of("[fd00::1]:77") == "tcp:[fd00::1]:77");
  CHECK(path_of("*:0") == "tcp:*:0");
}

TEST_CASE("a URI names the paths to one server, and perhaps the session") {
  const auto uri = parse_uri("rtrs+tcp://a:1,rdma:b:2,c/name");
  REQUIRE(uri);
  REQUIRE(uri->paths.size() == 3);
  CHECK(uri->paths[0].transport == TransportKind::tcp);
  CHECK(uri->paths[1].transport == TransportKind::rdma);
  CHECK(uri->paths[2].port == 1234);
  CHECK(uri->name == "name");
  CHECK(parse_uri("rtrs://a")->paths[0].transport == TransportKind::rdma);
}

TEST_CASE("a wrong URI is told what to write instead") {
  for (const char* text : {"", "a:1", "http://a"}) {
    CHECK(complaint(text).find("rtrs+tcp://HOST:PORT") != std::string::npos);
  }
  for (const char* text : {"rtrs://", "rtrs://:5", "rtrs://a,", "rtrs://[fd00::1"}) {
    CHECK(complaint(text).find("HOST:PORT") != std::string::npos);
  }
  for (const char* text : {"rtrs://a:", "rtrs://a:x", "rtrs://a:65536", "rtrs://a:-1"}) {
    CHECK(complaint(text).find("0 to 65535") != std::string::npos);
  }
}

}  // namespace
}  // namespace rtrs::library::uri_test
