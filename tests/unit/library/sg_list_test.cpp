// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/library/sg_list.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace rtrs::library::sg_list_test {
namespace {

struct Parts {
  std::string a = "abc", b, c = "defgh", d = "i";
  std::vector<iovec> list{{a.data(), a.size()}, {b.data(), 0}, {c.data(), c.size()}, {d.data(), 1}};
};

std::string gathered(const SgList& list, std::uint64_t offset, std::size_t length) {
  std::string text(length, '?');
  list.gather(offset, std::as_writable_bytes(std::span{text}));
  return text;
}

TEST_CASE("memory in parts is read as one, from any place on") {
  Parts parts;
  const SgList list{parts.list};
  CHECK(list.size() == 9);
  CHECK(gathered(list, 0, 9) == "abcdefghi");
  CHECK(gathered(list, 2, 3) == "cde");
  CHECK(gathered(list, 3, 5) == "defgh");
  CHECK(gathered(list, 8, 1) == "i");
  CHECK(gathered(list, 4, 0).empty());
}

TEST_CASE("only a range inside one part is contiguous") {
  Parts parts;
  const SgList list{parts.list};
  CHECK(list.contiguous(3, 5)->data() == reinterpret_cast<std::byte*>(parts.c.data()));
  CHECK(list.contiguous(1, 2)->data() == reinterpret_cast<std::byte*>(parts.a.data()) + 1);
  CHECK_FALSE(list.contiguous(2, 2));
  CHECK_FALSE(list.contiguous(0, 9));
  CHECK(list.contiguous(9, 0)->empty());
  CHECK(SgList{}.contiguous(0, 0)->empty());
}

TEST_CASE("what is scattered touches its range and nothing else") {
  Parts parts;
  const SgList list{parts.list};
  const std::string text = "CDE";
  list.scatter(2, std::as_bytes(std::span{text}));
  CHECK(gathered(list, 0, 9) == "abCDEfghi");
}

}  // namespace
}  // namespace rtrs::library::sg_list_test
