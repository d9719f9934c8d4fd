// SPDX-License-Identifier: BSD-3-Clause
// Writes that come twice, late, or out of turn, over one path or two: each is carried out once.
// Source of the rules: docs/protocol.md, RTRS extension.
#include <cerrno>
#include <chrono>
#include <string_view>
#include <thread>
#include <vector>

#include "tests/hostile/raw_session.hpp"
#include "tests/hostile/victim.hpp"

namespace rtrs::hostile::replay_test {
namespace {

using rnbd::wire::AccessMode;
using wire::bytes_of;
constexpr std::uint32_t kRead = 0, kWrite = 1;
constexpr std::uint32_t kLength = 512;
constexpr std::uint32_t kPermit = 3;  ///< that is abused
constexpr std::uint32_t kOther = 4;   ///< and one that is not

RawOptions with_generations(const RawSession* beside = nullptr) {
  return {.own_peer = true,
          .features = wire::kFeatureExactlyOnce | wire::kFeatureUserMessages,
          .beside = beside};
}

std::vector<std::byte> filled(char with) {
  return std::vector<std::byte>(kLength, static_cast<std::byte>(with));
}

void start(RawSession& path, std::uint32_t device, std::uint32_t generation, char fill,
           std::uint16_t flags = 0, std::uint64_t sector = 0) {
  const wire::WriteTrailer trailer{.generation = generation, .flags = flags};
  path.start_write(joined(io(device, kWrite, sector, kLength), trailer), filled(fill), kPermit);
}

int write(RawSession& path, std::uint32_t device, std::uint32_t generation, char fill,
          std::uint16_t flags = 0, std::uint64_t sector = 0) {
  start(path, device, generation, fill, flags, sector);
  return path.answer().value_or(-1);
}

/// A write of a lost session that still runs keeps everybody from opening it for writing.
std::uint32_t open_when_free(RawSession& path, std::string_view name) {
  const auto open = rnbd::wire::encode_open(name, AccessMode::read_write);
  const auto deadline = std::chrono::steady_clock::now() + kLimit;
  while (path.read(bytes_of(open), sizeof(rnbd::wire::OpenResponse)) == EPERM &&
         std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds{100});
  }
  return path.open(name, AccessMode::read_write);  // it is the same one
}

/// Also that nothing else was answered: the next answer is that of this read.
void holds(RawSession& path, std::uint32_t device, char fill) {
  path.start_read(bytes_of(io(device, kRead, 0, kLength)), kLength, kOther);
  CHECK(path.answer() == 0);
  const auto expected = filled(fill);
  CHECK(std::vector<std::byte>{path.data().begin(), path.data().begin() + kLength} == expected);
}

/// With one path, whose session works afterwards, and nothing was worth a complaint.
template <class Test>
void goes_on(Test test) {
  auto& victim = Victim::get();
  RawSession path{with_generations()};
  victim.forget_log();
  test(path, path.open("small", AccessMode::read_write));
  victim.is_content();
}

TEST_CASE("a write that was answered is answered again as it was, and not carried out") {
  goes_on([](RawSession& path, std::uint32_t device) {
    CHECK(write(path, device, 5, 'A') == 0);
    CHECK(write(path, device, 5, 'B') == 0);
    holds(path, device, 'A');
    const int failed = write(path, device, 6, 'B', 0, 1 << 20);
    CHECK(failed > 0);
    CHECK(write(path, device, 6, 'B') == failed);
    holds(path, device, 'A');
  });
}

TEST_CASE("a write that is older than what its permit has carried out is dropped") {
  goes_on([](RawSession& path, std::uint32_t device) {
    CHECK(write(path, device, 5, 'A') == 0);
    for (const std::uint32_t older : {4U, 0U, 0xFFFFFFFFU, 5U + 0x80000000U}) {
      start(path, device, older, 'B');
      holds(path, device, 'A');
    }
    CHECK(write(path, device, 6, 'C') == 0);
    holds(path, device, 'C');
  });
}

TEST_CASE("what was settled before it came is cancelled for ever") {
  goes_on([](RawSession& path, std::uint32_t device) {
    CHECK(write(path, device, 1, 'A') == 0);
    CHECK(write(path, device, 2, 'B', wire::kSettle) == ECANCELED);
    CHECK(write(path, device, 2, 'B') == ECANCELED);
    holds(path, device, 'A');
  });
}

TEST_CASE("a write that still executes and comes over another path is carried out once") {
  auto& victim = Victim::get();
  RawSession one{with_generations()};
  RawSession two{with_generations(&one)};
  victim.forget_log();
  const auto device = open_when_free(one, "slow-writes");
  start(one, device, 1, 'A');
  start(two, device, 1, 'B');
  CHECK(one.answer() == 0);
  CHECK(two.answer() == 0);
  holds(two, device, 'A');
  // A request that one path has carried out is old on the other one, too.
  start(two, device, 0, 'B');
  holds(two, device, 'A');
  victim.is_content();
}

// A packet that soft-RoCE loses comes again after seconds: the other write may have ended by then.
constexpr int kAttempts = 5;

TEST_CASE("a permit that is used before its answer, over another path, costs the session both") {
  auto& victim = Victim::get();
  for (int attempt = 1;; ++attempt) {
    RawSession one{with_generations()};
    RawSession two{with_generations(&one)};
    const auto device = open_when_free(one, "slow-writes");
    victim.forget_log();
    start(one, device, 1, 'A');
    start(two, device, 2, 'B');
    if (one.answer() && attempt < kAttempts) continue;
    CHECK(one.is_closed());
    CHECK(two.is_closed());
    victim.complains("the client used a permit before it had its answer", 2);
    return;
  }
}

TEST_CASE("without generations what comes over another path ends the first one") {
  auto& victim = Victim::get();
  for (int attempt = 1;; ++attempt) {
    RawSession one;
    RawSession two{{.beside = &one}};
    const auto device = open_when_free(one, "slow-writes");
    victim.forget_log();
    const auto message = io(device, kWrite, 0, kLength);
    one.start_write(bytes_of(message), filled('A'), kPermit);
    // Requests that the server reads together have no order. The first one executes for 2 s.
    std::this_thread::sleep_for(std::chrono::milliseconds{100});
    two.start_write(bytes_of(message), filled('A'), kPermit);
    if (one.answer() && attempt < kAttempts) continue;
    CHECK(one.is_closed());
    CHECK(two.answer() == 0);
    holds(two, device, 'A');
    victim.is_content("sent a request again on another path");
    return;
  }
}

}  // namespace
}  // namespace rtrs::hostile::replay_test
