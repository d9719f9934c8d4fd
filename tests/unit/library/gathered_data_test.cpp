// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/library/gathered_data.hpp"

#include <doctest/doctest.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

namespace rtrs::library::gathered_data_test {
namespace {

ConstBytes bytes(const std::string& text) { return std::as_bytes(std::span{text}); }

std::string text(ConstBytes data) {
  return {reinterpret_cast<const char*>(data.data()), data.size()};
}

TEST_CASE("pieces make up the data in whatever order and however often they come") {
  MemoryBudget budget{100};
  GatheredData data{budget};
  REQUIRE(data.begin(10, 4) == 0);
  CHECK(data.add(8, bytes("ij")) == 0);
  CHECK(data.add(0, bytes("abcd")) == 0);
  CHECK(data.add(0, bytes("XXXX")) == 0);  // a copy that is late changes nothing
  CHECK_FALSE(data.complete());
  CHECK(data.add(4, bytes("efgh")) == 0);
  CHECK(data.complete());
  CHECK(text(data.bytes()) == "abcdefghij");
}

TEST_CASE("what is no piece of the data is refused") {
  MemoryBudget budget{100};
  GatheredData data{budget};
  REQUIRE(data.begin(10, 4) == 0);
  CHECK(data.add(2, bytes("abcd")) == EBADMSG);
  CHECK(data.add(0, bytes("abc")) == EBADMSG);
  CHECK(data.add(8, bytes("ijkl")) == EBADMSG);
  CHECK(data.add(12, bytes("abcd")) == EBADMSG);
  CHECK(data.add(~std::uint64_t{3}, bytes("abcd")) == EBADMSG);
}

TEST_CASE("a piece that is received where it belongs is not copied") {
  MemoryBudget budget{100};
  GatheredData data{budget};
  REQUIRE(data.begin(10, 4) == 0);
  const MutableBytes place = data.expect(4);
  REQUIRE(place.size() == 4);
  CHECK(place.data() == data.bytes().data() + 4);
  std::memcpy(place.data(), "efgh", 4);
  CHECK(data.place_elsewhere(4, place.data()).empty());
  CHECK(data.add(4, place) == 0);
  CHECK(data.expect(8).size() == 2);
  CHECK(data.add(8, bytes("ij")) == 0);
  CHECK(data.add(0, bytes("abcd")) == 0);
  CHECK(text(data.bytes()) == "abcdefghij");
}

TEST_CASE("a place is given away once, and never that of a piece that is there") {
  MemoryBudget budget{100};
  GatheredData data{budget};
  REQUIRE(data.begin(10, 4) == 0);
  CHECK(data.add(0, bytes("abcd")) == 0);
  CHECK(data.expect(0).empty());
  CHECK(data.expect(5).empty());
  CHECK(data.expect(12).empty());
  const MutableBytes place = data.expect(4);
  CHECK(place.size() == 4);
  CHECK(data.expect(4).empty());
  // The piece comes from elsewhere first: its place must be taken back before.
  const std::string copy = "efgh";
  const MutableBytes taken_back = data.place_elsewhere(4, bytes(copy).data());
  CHECK(taken_back.data() == place.data());
  CHECK(taken_back.size() == place.size());
  CHECK(data.place_elsewhere(8, bytes(copy).data()).empty());  // nobody has it
}

TEST_CASE("memory counts from begin() until it is cleared or taken") {
  MemoryBudget budget{10};
  {
    GatheredData data{budget}, other{budget};
    REQUIRE(data.begin(10, 4) == 0);
    CHECK(other.begin(1, 4) == ENOBUFS);
    data.clear();
    CHECK(data.empty());
    REQUIRE(other.begin(10, 10) == 0);
    CHECK(other.add(0, bytes("0123456789")) == 0);
    void* taken = other.take();
    REQUIRE(taken != nullptr);
    CHECK(other.take() == nullptr);
    CHECK(text({static_cast<std::byte*>(taken), 10}) == "0123456789");
    std::free(taken);
    REQUIRE(data.begin(10, 4) == 0);
  }
  CHECK(budget.take(10));
  CHECK_FALSE(budget.take(1));
}

}  // namespace
}  // namespace rtrs::library::gathered_data_test
