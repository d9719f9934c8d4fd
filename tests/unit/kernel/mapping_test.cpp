// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/kernel/mapping.hpp"

#include <doctest/doctest.h>

namespace rnbd::mapping_file_test {
namespace {

Mapping with(const char* uri, std::vector<std::string> options = {}) {
  return {"disk0", uri, "nbd", std::move(options)};
}

TEST_CASE("a bridge is shared by disks of one server, one user and one session") {
  const Mapping first = with("rnbd+tcp://store/disk0", {"--path", "10.0.1.1"});
  const std::string key = bridge_key(first);
  CHECK(key.starts_with("store:1234-"));
  CHECK(is_bridge_key(key));
  CHECK_FALSE(is_bridge_key("disk0.a-b_c"));
  const Mapping same[] = {
      with("rnbd+tcp://store:1234/other", {"--path=10.0.1.1"}),
      with("rnbd+tcp://store/disk0?uuid=01234567-89ab-cdef-0123-456789abcdef",
           {"--access", "ro", "--path", "10.0.1.1", "--dead-timeout", "5s", "--discard=on"}),
  };
  for (const Mapping& each : same) CHECK(bridge_key(each) == key);
  const Mapping others[] = {
      with("rnbd+tcp://store/disk0"),
      with("rnbd+tcp://store:99/disk0", {"--path", "10.0.1.1"}),
      with("rnbd://store/disk0", {"--path", "10.0.1.1"}),
      with("rnbds+tcp://store/disk0", {"--path", "10.0.1.1"}),
      with("rnbds+tcp://me@store/disk0", {"--path", "10.0.1.1"}),
      with("rnbd+tcp://store/disk0?server-id=0123456789abcdef", {"--path", "10.0.1.1"}),
      with("rnbd+tcp://store/disk0", {"--path", "10.0.2.1"}),
      with("rnbd+tcp://store/disk0", {"--path", "10.0.1.1", "--lanes", "2"}),
      with("rnbd+tcp://store/disk0", {"--path", "10.0.1.1", "--no-path-timeout", "5s"}),
  };
  for (const Mapping& each : others) {
    CAPTURE(each.uri);
    CHECK_FALSE(bridge_key(each).empty());
    CHECK(bridge_key(each) != key);
  }
}

TEST_CASE("the order of options means nothing, that of paths does") {
  const char* const uri = "rnbd+tcp://store/disk0";
  CHECK(bridge_key(with(uri, {"--lanes", "2", "--path", "a:1", "--path", "b:1"})) ==
        bridge_key(with(uri, {"--path", "a:1", "--lanes", "2", "--path", "b:1"})));
  CHECK(bridge_key(with(uri, {"--path", "a:1", "--path", "b:1"})) !=
        bridge_key(with(uri, {"--path", "b:1", "--path", "a:1"})));
}

TEST_CASE("some disks need a process of their own") {
  for (const Mapping& each : {
           with("rnbd+tcp://store/disk0", {"--listen", "unix:/x"}),
           with("rnbd+tcp://store/disk0", {"--metrics=:9100"}),
           with("rnbd+tcp://store/disk0", {"--tls-psk", "/x"}),
           with("rnbds+tcp://store/disk0?tls-psk-file=credential:psk"),
           with("rnbds+tcp://store/disk0", {"--upstream-tls-psk", "credential:psk"}),
           with("rnbd-mirror+tcp://a,b/disk0"),
           with("no URI"),
       }) {
    CAPTURE(each.uri);
    CHECK(bridge_key(each) == "");
  }
}

TEST_CASE("a key has only what names of files and units may have") {
  const std::string key = bridge_key(with("rnbd+tcp://[fe80::1%25eth0]/disk0"));
  CHECK(key.starts_with("fe80::1"));
  CHECK(key.find_first_of("%/ []") == std::string::npos);
  const std::string host(200, 'a');
  CHECK(bridge_key(with(("rnbd+tcp://" + host + "/disk0").c_str())).size() < 80);
}

TEST_CASE("the file says whose disk it is") {
  Mapping mapping = with("rnbd+tcp://store/disk0", {"--access", "ro"});
  CHECK(file_of(mapping).starts_with("# Of rnbd-map@disk0.service; "));
  CHECK(file_of(mapping).find("BRIDGE") == std::string::npos);
  mapping.bridge = bridge_key(mapping);
  const std::string file = file_of(mapping);
  CHECK(file.starts_with("# Of rnbd-maps@" + mapping.bridge + ".service; "));
  CHECK(file.find("\nBRIDGE=\"" + mapping.bridge + "\"\n") != std::string::npos);
  const auto again = read_mapping("disk0", file);
  REQUIRE(again.has_value());
  CHECK((*again == mapping));
}

}  // namespace
}  // namespace rnbd::mapping_file_test
