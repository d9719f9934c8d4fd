// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/protocol/closest.hpp"

#include <doctest/doctest.h>

namespace rnbd::closest_test {
namespace {

TEST_CASE("a near word is found, a far one is not") {
  const std::vector<std::string> words{"queue-depth", "max-io-size", "reactors", "direct"};
  CHECK(closest("queue_depth", words) == "queue-depth");
  CHECK(closest("maxiosize", words) == "max-io-size");
  CHECK(closest("reactor", words) == "reactors");
  CHECK(closest("frobnicate", words) == "");
  CHECK(closest("", words) == "");
  CHECK(closest("umap", {"map", "unmap", "remap"}) == "unmap");
  CHECK(closest("umap", {"unmap", "map"}) == "unmap");
  CHECK(closest("lsit", {"list"}) == "list");
  CHECK(closest("ilts", {"list"}) == "");
}

}  // namespace
}  // namespace rnbd::closest_test
