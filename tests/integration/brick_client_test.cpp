// SPDX-License-Identifier: BSD-3-Clause
// One-sided reads and writes of a brick that a real server exports; brick.sh runs it, and the lab
// over RDMA. RNBD_BRICK is the server's path ("tcp:127.0.0.1:1234"), which has the brick "disk0".
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "bridge/client/brick/remote_brick.hpp"
#include "bridge/client/uri.hpp"

namespace rnbd::brick_client_test {
namespace {

constexpr std::uint64_t kBlock = wire::kBrickBlock;
constexpr std::uint32_t kBoth = wire::kMapRead | wire::kMapWrite;
const Interrupt kNever{};

std::vector<std::byte> bytes(std::size_t size, unsigned seed) {
  std::vector<std::byte> result(size);
  for (std::size_t i = 0; i < size; ++i) {
    result[i] = static_cast<std::byte>(i * 31 + i / 251 + seed + 1);
  }
  return result;
}

rtrs::PathAddress address() {
  const char* const text = std::getenv("RNBD_BRICK");
  REQUIRE_MESSAGE(text != nullptr, "RNBD_BRICK is not set");
  const auto path = parse_path(text, rtrs::TransportKind::tcp);
  REQUIRE(path.has_value());
  return *path;
}

struct Client {
  explicit Client(const char* device = "disk0") {
    static std::atomic<int> counter{0};
    rtrs::ClientOptions options;
    options.session_name = "brick-client-" + std::to_string(++counter);
    options.paths = {address()};
    options.lanes = 2;
    options.connect_timeout = std::chrono::minutes{2};  // a guest may be slow
    options.heartbeat_interval = std::chrono::seconds{5};
    options.features =
        rtrs::wire::kFeatureExactlyOnce | rtrs::wire::kFeatureUserMessages | kBrickFeatures;
    auto made = Session::connect(options, kNever);
    REQUIRE_MESSAGE(made.has_value(), (made ? "" : made.error().text));
    session = *std::move(made);
    auto opened = RemoteBrick::open(*session, device, {}, address(), kNever);
    REQUIRE_MESSAGE(opened.has_value(), (opened ? "" : opened.error().text));
    brick = *std::move(opened);
    // The blocks of an earlier case.
    const auto left = brick->list(wire::BrickListing::allocated, kNever);
    REQUIRE(left.has_value());
    for (const auto& extent : *left) {
      REQUIRE(brick->free(extent.id, static_cast<std::uint32_t>(extent.blocks), true, kNever) == 0);
    }
  }
  std::vector<MappedBlock> map(std::uint64_t id, std::uint32_t count, std::uint32_t flags = kBoth) {
    auto blocks = brick->map(id, count, flags, kNever);
    REQUIRE_MESSAGE(blocks.has_value(), (blocks ? 0 : blocks.error()));
    return *std::move(blocks);
  }

  std::shared_ptr<Session> session;
  std::unique_ptr<RemoteBrick> brick;
};

TEST_CASE("what is written one-sided is read one-sided, and by everybody else") {
  Client c;
  RemoteBrick& brick = *c.brick;
  const auto info = brick.info(kNever);
  REQUIRE(info.has_value());
  REQUIRE(brick.alloc(0, 2, true, kNever) == 0);
  CHECK(brick.info(kNever)->free == info->free - 2);
  CHECK(brick.alloc(0, 1, true, kNever) == EEXIST);
  const auto blocks = c.map(0, 2);
  REQUIRE(blocks.size() == 2);
  std::vector<std::byte> back(kBlock);
  for (unsigned i = 0; i < 2; ++i) {
    CHECK(RemoteBrick::read(blocks[i], 0, back, kNever) == 0);
    CHECK(std::ranges::count(back, std::byte{0}) == static_cast<std::ptrdiff_t>(kBlock));
    CHECK(RemoteBrick::write(blocks[i], 0, bytes(kBlock, i), kNever) == 0);
  }
  for (unsigned i = 0; i < 2; ++i) {
    CHECK(RemoteBrick::read(blocks[i], 0, back, kNever) == 0);
    CHECK(back == bytes(kBlock, i));
    CHECK(brick.device().read(i * kBlock, back, kNever) == 0);
    CHECK(back == bytes(kBlock, i));
  }
  for (const std::size_t size : {std::size_t{1}, std::size_t{7}, kBlock}) {
    const auto mine = bytes(size, static_cast<unsigned>(size));
    CHECK(RemoteBrick::write_settled(blocks[0], kBlock - size, mine, kNever) == 0);
    CHECK(brick.device().read(kBlock - size, rtrs::MutableBytes{back}.first(size), kNever) == 0);
    CHECK(std::ranges::equal(mine, rtrs::ConstBytes{back}.first(size)));
  }
  const auto mapped = brick.list(wire::BrickListing::mapped_by_me, kNever);
  REQUIRE(mapped.has_value());
  REQUIRE(mapped->size() == 1);
  CHECK(mapped->front().blocks == 2);
  CHECK(brick.free(0, 1, true, kNever) == EBUSY);
  for (const auto& block : blocks) CHECK(brick.unmap(block, false, kNever) == 0);
  CHECK(brick.unmap(blocks[0], false, kNever) == ENOENT);
  CHECK(brick.device().read(kBlock, back, kNever) == 0);
  CHECK(back == bytes(kBlock, 1));
  CHECK(brick.free(0, 2, true, kNever) == 0);
  CHECK(brick.info(kNever)->free == info->free);
  CHECK(brick.alive());
}

TEST_CASE("a key ends with its map, and whoever uses it loses the memory path and nothing else") {
  Client c;
  RemoteBrick& brick = *c.brick;
  REQUIRE(brick.alloc(0, 1, true, kNever) == 0);
  const auto first = c.map(0, 1)[0];
  CHECK(RemoteBrick::write(first, 0, bytes(kBlock, 1), kNever) == 0);
  REQUIRE(brick.unmap(first, false, kNever) == 0);
  const auto again = c.map(0, 1)[0];
  CHECK(again.generation != first.generation);
  CHECK(RemoteBrick::write(first, 0, bytes(64, 9), kNever) == EIO);
  CHECK(brick.device().session().alive());
  REQUIRE(brick.recover(kNever).has_value());
  CHECK(brick.alive());
  CHECK(RemoteBrick::write(again, 0, bytes(64, 9), kNever) == EIO);  // dead with its path
  const auto anew = c.map(0, 1)[0];
  std::vector<std::byte> back(kBlock);
  CHECK(RemoteBrick::read(anew, 0, back, kNever) == 0);
  CHECK(back == bytes(kBlock, 1));
}

TEST_CASE("a map for reading only cannot be written, whatever its client tries") {
  Client c;
  RemoteBrick& brick = *c.brick;
  REQUIRE(brick.alloc(0, 1, true, kNever) == 0);
  const auto block = c.map(0, 1, wire::kMapRead)[0];
  CHECK(RemoteBrick::write(block, 0, bytes(64, 9), kNever) == EACCES);
  CHECK(RemoteBrick::read(block, kBlock - 63, rtrs::MutableBytes{}, kNever) == 0);
  std::vector<std::byte> back(64);
  CHECK(RemoteBrick::read(block, kBlock - 63, back, kNever) == EINVAL);
  CHECK(block.path->write(block.where, bytes(64, 9), kNever) == EIO);
  REQUIRE(brick.recover(kNever).has_value());
  CHECK(brick.device().read(0, back, kNever) == 0);
  CHECK(back == std::vector<std::byte>(64));
}

TEST_CASE("no key opens a block of another client") {
  Client one;
  REQUIRE(one.brick->alloc(0, 1, true, kNever) == 0);
  const auto block = one.map(0, 1, wire::kMapRead | wire::kMapOthersRead)[0];
  rtrs::ClientOptions options;
  options.session_name = "brick-stranger";
  options.paths = {address()};
  options.features =
      rtrs::wire::kFeatureExactlyOnce | rtrs::wire::kFeatureUserMessages | kBrickFeatures;
  auto session = Session::connect(options, kNever);
  REQUIRE(session.has_value());
  auto path = (*session)->client().open_memory_path(address(), kNever);
  REQUIRE(path.has_value());
  std::vector<std::byte> back(64);
  CHECK((*path)->read(block.where, back, kNever) == EIO);
  CHECK((*session)->alive());
  CHECK(RemoteBrick::read(block, 0, back, kNever) == 0);
  CHECK(one.brick->alive());
}

TEST_CASE("after recovery nothing of an interrupted write lands on top of what comes next") {
  Client c;
  RemoteBrick& brick = *c.brick;
  REQUIRE(brick.alloc(0, 1, true, kNever) == 0);
  std::vector<std::byte> back(kBlock);
  const Interrupt at_once{[](void*) { return true; }, nullptr};
  for (unsigned round = 0; round < 10; ++round) {
    const auto block = c.map(0, 1)[0];
    CHECK(RemoteBrick::write(block, 0, bytes(kBlock, 77), at_once) == EINTR);
    REQUIRE(brick.recover(kNever).has_value());
    REQUIRE(brick.device().write(0, bytes(kBlock, round), false, kNever) == 0);
    REQUIRE(brick.device().read(0, back, kNever) == 0);
    CHECK(back == bytes(kBlock, round));
  }
}

/// Memory is full of this client's maps, and more blocks are allocated.
struct FullMemory {
  FullMemory() {
    const auto info = c.brick->info(kNever);
    REQUIRE(info.has_value());
    in_memory = static_cast<std::uint32_t>(info->in_memory);
    if (is_plain()) return;
    REQUIRE(c.brick->alloc(0, in_memory + 1, true, kNever) == 0);
    REQUIRE(c.brick->device().write(in_memory * kBlock, bytes(kBlock, 5), false, kNever) == 0);
    blocks = c.map(0, in_memory);
    REQUIRE(blocks.size() == in_memory);
  }
  /// Each block has its place in memory then, and none is ever recalled.
  bool is_plain() const { return c.brick->info(kNever)->blocks == in_memory; }
  /// Others may use it, too: it has no room in memory.
  int read_the_last(std::vector<std::byte>& back) const {
    return c.brick->device().read(in_memory * kBlock, back, kNever);
  }

  Client c;
  std::uint32_t in_memory = 0;
  std::vector<MappedBlock> blocks;
};

/// False: the machine was so slow that the lease ended first.
bool gives_back() {
  FullMemory full;
  RemoteBrick& brick = *full.c.brick;
  std::atomic<bool> recalled{false};
  brick.on_recall([&] {
    recalled = true;
    recalled.notify_all();
  });
  std::thread giver{[&] {
    recalled.wait(false);
    const auto wanted = brick.list(wire::BrickListing::recalled, kNever);
    if (!wanted || wanted->empty()) return;
    CHECK(wanted->size() == 1);
    for (const auto& block : full.blocks) {
      if (block.id == wanted->front().id) brick.unmap(block, false, kNever);
    }
  }};
  std::vector<std::byte> back(kBlock);
  CHECK(full.read_the_last(back) == 0);
  CHECK(back == bytes(kBlock, 5));
  giver.join();
  brick.on_recall(nullptr);
  const auto left = brick.list(wire::BrickListing::mapped_by_me, kNever);
  REQUIRE(left.has_value());
  if (left->size() != 1 || RemoteBrick::read(full.blocks[1], 0, back, kNever) != 0) return false;
  CHECK(brick.alive());
  return true;
}

TEST_CASE("a client is told of a recall, gives the block back, and keeps its memory path") {
  if (FullMemory{}.is_plain()) return;
  bool given = false;
  for (int attempt = 0; attempt < 5 && !given; ++attempt) given = gives_back();
  CHECK(given);
}

TEST_CASE(
    "a client that gives nothing back loses its memory path when the lease ends, not before") {
  FullMemory full;
  if (full.is_plain()) return;
  const std::chrono::milliseconds lease{full.c.brick->info(kNever)->lease};
  std::vector<std::byte> back(kBlock);
  const auto began = std::chrono::steady_clock::now();
  CHECK(full.read_the_last(back) == 0);
  CHECK(std::chrono::steady_clock::now() - began >= lease);
  CHECK(RemoteBrick::read(full.blocks[0], 0, back, kNever) == EIO);
  CHECK_FALSE(full.c.brick->alive());
  CHECK(full.c.session->alive());
  REQUIRE(full.c.brick->recover(kNever).has_value());
  CHECK(full.c.map(0, 1).size() == 1);
}

/// Each costs the memory path, and nothing else.
TEST_CASE("forged keys and addresses are refused, every one, and change nothing") {
  Client c;
  RemoteBrick& brick = *c.brick;
  REQUIRE(brick.alloc(0, 2, true, kNever) == 0);
  for (const std::uint64_t block : {0, 1})
    REQUIRE(brick.device().write(block * kBlock, bytes(kBlock, 3), false, kNever) == 0);
  std::mt19937_64 dice{7};
  std::vector<std::byte> back(kBlock);
  for (unsigned round = 0; round < 40; ++round) {
    const auto block = c.map(0, 1)[0];
    rtrs::RemoteMemory forged = block.where;
    const unsigned kind = round % 7;
    if (kind == 0) forged.key ^= 1U << dice() % 32;
    if (kind == 1) forged.address += kBlock - 63;
    if (kind == 2) forged.address -= 1;
    if (kind == 3) forged.address ^= std::uint64_t{1} << (21 + dice() % 43);
    if (kind == 4) {  // the block has another key now
      REQUIRE(brick.unmap(block, false, kNever) == 0);
      c.map(0, 1);
    }
    if (kind == 5) forged = {dice(), static_cast<std::uint32_t>(dice())};
    if (kind == 6) forged = {0, 0};
    const auto mine = bytes(64, 9);
    const bool reads = dice() % 2 == 0;
    const int error = reads ? block.path->read(forged, rtrs::MutableBytes{back}.first(64), kNever)
                            : block.path->write(forged, mine, kNever);
    REQUIRE_MESSAGE(error == EIO, "kind ", kind);
    REQUIRE(c.session->alive());
    REQUIRE(brick.recover(kNever).has_value());
  }
  for (const std::uint64_t block : {0, 1}) {
    CHECK(brick.device().read(block * kBlock, back, kNever) == 0);
    CHECK(back == bytes(kBlock, 3));
  }
}

/// Switches of context of all threads of the server so far.
std::uint64_t switches_of(const char* server) {
  std::uint64_t sum = 0;
  const auto tasks = std::filesystem::path{"/proc"} / server / "task";
  for (const auto& task : std::filesystem::directory_iterator{tasks}) {
    std::ifstream status{task.path() / "status"};
    for (std::string line; std::getline(status, line);)
      if (line.find("ctxt_switches:") != std::string::npos)
        sum += std::stoull(line.substr(line.find(':') + 1));
  }
  return sum;
}

struct Measured {
  double median = 0;    ///< microseconds
  double switches = 0;  ///< of the server, for each operation
};

/// `operation` is done again and again.
template <class Operation>
Measured measure(const char* server, Operation operation) {
  constexpr unsigned kTimes = 1000;
  std::vector<double> times;
  const std::uint64_t before = switches_of(server);
  for (unsigned i = 0; i < kTimes; ++i) {
    const auto began = std::chrono::steady_clock::now();
    REQUIRE(operation(i % 500 * 4096ULL) == 0);
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - began;
    times.push_back(took.count());
  }
  const auto switches = static_cast<double>(switches_of(server) - before) / kTimes;
  std::ranges::nth_element(times, times.begin() + kTimes / 2);
  return {times[kTimes / 2], switches};
}

/// Both ways in turn, so that what else the machine does hits both.
TEST_CASE("measure: one-sided operations against two-sided ones" * doctest::skip()) {
  const char* const server = std::getenv("RNBD_SERVER_PID");
  REQUIRE_MESSAGE(server != nullptr, "RNBD_SERVER_PID is not set");
  Client c;
  REQUIRE(c.brick->alloc(0, 1, true, kNever) == 0);
  RemoteDevice& device = c.brick->device();
  std::vector<std::byte> data = bytes(4096, 1);
  std::vector<double> reads, writes;
  double switches = 1;
  for (unsigned round = 0; round < 3; ++round) {
    const auto two_sided_read =
        measure(server, [&](std::uint64_t at) { return device.read(at, data, kNever); });
    const auto two_sided_write =
        measure(server, [&](std::uint64_t at) { return device.write(at, data, false, kNever); });
    const auto block = c.map(0, 1)[0];
    const auto read = measure(
        server, [&](std::uint64_t at) { return RemoteBrick::read(block, at, data, kNever); });
    const auto write = measure(server, [&](std::uint64_t at) {
      return RemoteBrick::write_settled(block, at, data, kNever);
    });
    REQUIRE(c.brick->unmap(block, false, kNever) == 0);
    MESSAGE("read ", read.median, " us, two-sided ", two_sided_read.median,
            " us; written and seen ", write.median, " us, two-sided ", two_sided_write.median,
            " us; switches ", read.switches, " and ", write.switches, ", two-sided ",
            two_sided_read.switches);
    reads.push_back(read.median / two_sided_read.median);
    writes.push_back(write.median / two_sided_write.median);
    switches = std::min(switches, std::max(read.switches, write.switches));
  }
  std::ranges::sort(reads);
  std::ranges::sort(writes);
  CHECK(reads[1] <= 0.40);
  CHECK(writes[1] <= 0.45);
  CHECK(switches <= 0.02);
}

TEST_CASE("many threads use blocks of their own while others are mapped and unmapped") {
  Client c;
  RemoteBrick& brick = *c.brick;
  REQUIRE(brick.alloc(0, 2, true, kNever) == 0);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      std::vector<std::byte> back(64 * 1024);
      for (unsigned i = 0; i < 50; ++i) {
        const auto blocks = brick.map(t * kBlock, 1, kBoth, kNever);
        if (!blocks) {
          ++wrong;
          continue;
        }
        const auto& block = blocks->front();
        const auto data = bytes(back.size(), t * 100 + i);
        wrong += RemoteBrick::write(block, i * 4096, data, kNever) != 0;
        wrong += RemoteBrick::read(block, i * 4096, back, kNever) != 0;
        wrong += back != data;
        wrong += brick.unmap(block, false, kNever) != 0;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(wrong == 0);
}

}  // namespace
}  // namespace rnbd::brick_client_test
