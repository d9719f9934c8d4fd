// SPDX-License-Identifier: BSD-3-Clause
// Bricks through librtrs, as a program has them that knows nothing but rtrs.hpp; brick.sh runs it.
// RNBD_BRICK_URI names the brick.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <rtrs.hpp>

namespace brick_library_test {
namespace {

using rtrs::Brick;

const char* uri() {
  const char* const text = std::getenv("RNBD_BRICK_URI");
  REQUIRE_MESSAGE(text != nullptr, "RNBD_BRICK_URI is not set");
  return text;
}

/// Without the blocks of an earlier case.
Brick open_empty() {
  auto brick = Brick::open(uri());
  REQUIRE_MESSAGE(brick, brick.error().text);
  const auto left = brick->list(RTRS_BRICK_ALLOCATED);
  REQUIRE(left);
  for (const auto& extent : *left)
    REQUIRE(brick->free(extent.id, static_cast<std::uint32_t>(extent.blocks)) == 0);
  return *std::move(brick);
}

TEST_CASE("blocks are allocated, mapped, written, made durable, read and given back") {
  Brick brick = open_empty();
  const auto info = brick.info();
  REQUIRE(info);
  CHECK(info->free == info->blocks);
  REQUIRE(brick.alloc(0x7000'0000'0000'0000, 2) == 0);
  CHECK(brick.alloc(0x7000'0000'0000'0000) == EEXIST);
  CHECK(brick.alloc(4096) == EINVAL);
  const std::string text(100'000, 'b');
  {
    auto map = brick.map(0x7000'0000'0000'0000);
    REQUIRE(map);
    CHECK(map->write(1000, rtrs::bytes(text)) == 0);
    CHECK(map->write(Brick::kBlock - 1, rtrs::bytes(text)) == EINVAL);
    const Brick::Range range{0x7000'0000'0000'0000 + 1000, text.size()};
    CHECK(brick.sync({&range, 1}) == (info->durability == RTRS_BRICK_SYNC ? 0 : EOPNOTSUPP));
    CHECK(brick.free(0x7000'0000'0000'0000) == EBUSY);
    const auto mine = brick.list(RTRS_BRICK_MINE);
    REQUIRE(mine);
    REQUIRE(mine->size() == 1);
    CHECK(mine->front().id == 0x7000'0000'0000'0000);
    CHECK(map->unmap() == 0);
  }
  auto again = brick.map(0x7000'0000'0000'0000, 0);
  REQUIRE(again);
  std::string back(text.size(), '\0');
  CHECK(again->read(1000, rtrs::room(back)) == 0);
  CHECK(back == text);
  CHECK(again->write(0, rtrs::bytes(text)) == EACCES);
  CHECK(again->unmap() == 0);
  CHECK(brick.free(0x7000'0000'0000'0000, 2) == 0);
}

TEST_CASE("a child of fork() uses nothing of a brick, and its end does no harm") {
  std::optional<Brick> brick{open_empty()};
  REQUIRE(brick->alloc(0) == 0);
  auto map = brick->map(0);
  REQUIRE(map);
  const std::string text = "of the parent";
  REQUIRE(map->write(0, rtrs::bytes(text)) == 0);
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    std::string back(text.size(), '?');
    const bool refused =
        brick->info().code() == RTRS_FORKED && brick->alloc(Brick::kBlock) == RTRS_FORKED &&
        brick->free(0) == RTRS_FORKED && brick->map(0).code() == RTRS_FORKED &&
        map->read(0, rtrs::room(back)) == RTRS_FORKED &&
        map->write(0, rtrs::bytes(back)) == RTRS_FORKED && brick->sync() == RTRS_FORKED &&
        brick->list(RTRS_BRICK_MINE).code() == RTRS_FORKED && brick->recover() == RTRS_FORKED &&
        map->unmap() == RTRS_FORKED;
    brick.reset();
    _exit(refused ? 0 : 1);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  std::string back(text.size(), '?');
  CHECK(map->read(0, rtrs::room(back)) == 0);
  CHECK(back == text);
  CHECK(map->unmap() == 0);
  CHECK(brick->free(0) == 0);
}

TEST_CASE("after recovery maps are dead, their blocks are not") {
  Brick brick = open_empty();
  REQUIRE(brick.alloc(0) == 0);
  auto one = brick.map(0);
  REQUIRE(one);
  const std::string text = "still there";
  REQUIRE(one->write(0, rtrs::bytes(text)) == 0);
  CHECK(brick.recover() == 0);  // nothing is lost
  REQUIRE(one->unmap() == 0);
  auto reader = brick.map(0, 0);
  REQUIRE(reader);
  std::string back(text.size(), '\0');
  CHECK(reader->read(0, rtrs::room(back)) == 0);
  CHECK(back == text);
}

TEST_CASE("what was moved away is an error") {
  Brick brick = open_empty();
  REQUIRE(brick.alloc(0) == 0);
  auto map = brick.map(0);
  REQUIRE(map);
  {
    const rtrs::Map moved = *std::move(map);
    std::string text(10, '?');
    CHECK(map->read(0, rtrs::room(text)) == EINVAL);  // NOLINT: that is the question
    CHECK(map->write(0, rtrs::bytes(text)) == EINVAL);
    CHECK(map->unmap() == 0);
  }
  CHECK(rtrs_brick_unmap(nullptr) == EINVAL);
  const Brick moved = std::move(brick);
  CHECK(brick.info().code() == EINVAL);  // NOLINT
  CHECK(brick.alloc(Brick::kBlock) == EINVAL);
  CHECK(brick.free(0) == EINVAL);
  CHECK(brick.map(0).code() == EINVAL);
  CHECK(brick.sync() == EINVAL);
  CHECK(brick.list(RTRS_BRICK_MINE).code() == EINVAL);
  CHECK(brick.recover() == EINVAL);
  brick.on_recall([] {});
  rtrs_brick_close(nullptr);
}

TEST_CASE("what is no brick is refused, with a sentence") {
  for (const char* wrong : {"rtrs+tcp://127.0.0.1/disk0", "rnbd+tcp://127.0.0.1", "nonsense"}) {
    auto brick = Brick::open(wrong);
    CHECK_FALSE(brick);
    CHECK(brick.code() == EINVAL);
    CHECK_FALSE(brick.error().text.empty());
  }
}

}  // namespace
}  // namespace brick_library_test
