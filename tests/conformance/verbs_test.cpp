// SPDX-License-Identifier: BSD-3-Clause
// Verbs: the suite that every transport passes. Runs in the lab, where there is a device.
#include <poll.h>

#include <chrono>
#include <optional>
#include <thread>

#include "tests/conformance/regions_suite.hpp"
#include "tests/conformance/verbs_fixture.hpp"

namespace rtrs::conformance::verbs_test {
namespace {

TEST_CASE_TEMPLATE_INVOKE(queue_pair_conformance, VerbsInlining, VerbsWithoutInline);
TEST_CASE_TEMPLATE_INVOKE(regions_conformance, VerbsInlining);

TEST_CASE("verbs: both ends see the same binding, which no other connection has") {
  VerbsInlining one, other;
  const Binding binding = one.left().binding();
  CHECK(binding != Binding{});
  CHECK(binding == one.right().binding());
  CHECK(binding != other.left().binding());
}

TEST_CASE("verbs: a revoked key opens nothing, and the next one does") {
  VerbsInlining f;
  std::vector<std::byte> memory(3 * 4096);
  const MutableBytes chunk = MutableBytes{memory}.subspan(4096, 4096);
  REQUIRE(f.verbs_right().reserve_keys(2).has_value());
  REQUIRE(f.verbs_right().register_memory(memory).has_value());
  f.right().post_receives(8, 0);
  const auto data = pattern(4096);
  // The peer may use a key when a message that was posted behind it has come.
  const auto expose = [&] {
    f.left().post_receives(1, 0);
    const RemoteMemory where = f.right().expose(1, chunk);
    f.right().write_with_immediate({}, {}, {}, 2);
    f.right().flush();
    f.settle();
    return where;
  };
  const RemoteMemory first = expose();
  const auto write = [&](RemoteMemory to) {
    f.left().write_with_immediate(to, f.left().stage(0, data), {}, 1);
    f.left().flush();
    f.settle();
  };
  write(first);
  CHECK(equal(chunk, data));
  f.right().revoke(1);
  f.settle();
  CHECK(f.heard_by_right().revoked == std::vector<std::uint32_t>{1});

  SUBCASE("the new key works") {
    std::fill(memory.begin(), memory.end(), std::byte{0});
    const RemoteMemory second = expose();
    CHECK(second.key != first.key);
    write(second);
    CHECK(equal(chunk, data));
    CHECK_FALSE(f.right_failed());
  }
  SUBCASE("the old key breaks the connection, and no byte lands") {
    std::fill(memory.begin(), memory.end(), std::byte{0});
    write(first);
    CHECK(f.right_failed());
    CHECK(equal(memory, std::vector<std::byte>(memory.size())));
  }
}

TEST_CASE("verbs: registered memory is sent and received where it lies") {
  VerbsInlining f;
  auto memory = pattern(3 * 4096);
  const auto before = memory;
  REQUIRE(f.verbs_left().register_memory(memory).has_value());
  const MutableBytes part = MutableBytes{memory}.subspan(100, 4096);
  std::vector<std::byte> chunk(8192);
  f.share_right(chunk);
  f.left().post_receives(4, 0);
  f.right().post_receives(4, 0);
  const RemoteMemory where = f.right().expose(0, chunk);

  SUBCASE("data and what is said behind them are one message") {
    const ConstBytes data = f.left().stage(1, part);
    CHECK(data.data() == part.data());
    const auto header = pattern(40, 7);
    f.left().write_with_immediate(where, data, header, 9);
    f.left().flush();
    f.settle();
    REQUIRE(f.heard_by_right().events.size() == 1);
    CHECK(f.heard_by_right().events[0].immediate == 9);
    CHECK(equal(ConstBytes{chunk}.first(4096), part));
    CHECK(equal(ConstBytes{chunk}.subspan(4096, 40), header));
  }
  SUBCASE("the peer writes into it") {
    const RemoteMemory room = f.left().expose(1, part);
    CHECK(room.address == reinterpret_cast<std::uintptr_t>(part.data()));
    std::ranges::fill(chunk, std::byte{5});
    f.right().write_with_immediate(room, ConstBytes{chunk}.first(4096), {}, 9);
    f.right().flush();
    f.settle();
    CHECK(equal(part, ConstBytes{chunk}.first(4096)));
    CHECK(equal(ConstBytes{memory}.subspan(4196), ConstBytes{before}.subspan(4196)));
  }
  SUBCASE("whoever takes it back too early has it for himself, and the connection breaks") {
    const RemoteMemory room = f.left().expose(1, part);
    f.left().abandon(1);
    f.left().withdraw(1);
    f.right().write_with_immediate(room, ConstBytes{chunk}.first(4096), {}, 9);
    f.right().flush();
    f.settle();
    CHECK(f.left_failed());
    CHECK(equal(memory, before));
  }
  SUBCASE("what is forgotten is copied again") {
    f.verbs_left().forget_memory(memory);
    CHECK(f.left().stage(1, part).data() != part.data());
    CHECK(f.left().expose(2, part).address != reinterpret_cast<std::uintptr_t>(part.data()));
  }
}

bool is_ready(int descriptor, int milliseconds = 20'000) {
  pollfd ready{descriptor, POLLIN, 0};
  return poll(&ready, 1, milliseconds) == 1;
}

TEST_CASE("verbs: a connection's end that comes with its last message is found together with it") {
  VerbsInlining f;
  verbs::VerbsQueuePair& right = f.verbs_right();
  right.post_receives(1, 0);
  f.settle();
  f.left().write_with_immediate({}, {}, {}, 7);
  f.left().flush();
  REQUIRE(is_ready(right.descriptor()));
  f.close_left();
  REQUIRE(is_ready(right.id().descriptor()));
  CHECK(right.progress(f.heard_by_right()) == Connection::Status::closed);
  CHECK(f.heard_by_right().events.size() == 1);
}

TEST_CASE("verbs: what was sent before an orderly end arrives before it") {
  constexpr std::uint32_t kMessages = 40;
  VerbsInlining f;
  verbs::VerbsQueuePair& right = f.verbs_right();
  right.post_receives(kMessages, 0);
  f.settle();
  for (std::uint32_t i = 0; i < kMessages; ++i) f.left().write_with_immediate({}, {}, {}, i);
  f.verbs_left().finish(Instant::max());
  f.close_left();
  REQUIRE(is_ready(right.id().descriptor()));
  auto status = Connection::Status::more;
  while (status == Connection::Status::more || status == Connection::Status::drained) {
    status = right.progress(f.heard_by_right());
  }
  CHECK(status == Connection::Status::closed);
  CHECK(f.heard_by_right().events.size() == kMessages);
}

/// More completions than there is room for, which only somebody can make who goes past our queues.
/// Devices may have twice the room that they tell.
void overflow_completions(const verbs::VerbsQueuePair& queue_pair) {
  ibv_send_wr request{};
  request.opcode = IBV_WR_RDMA_WRITE;
  request.send_flags = IBV_SEND_SIGNALED;
  request.wr_id = std::uint64_t{1} << 62;  // of a bind, so that nobody misses its ticket
  ibv_qp* const qp = queue_pair.id()->qp;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds{60};
  for (int left = 2 * qp->send_cq->cqe + 16; left > 0;) {
    ibv_send_wr* bad = nullptr;
    if (ibv_post_send(qp, &request, &bad) == 0) {
      --left;
      continue;
    }
    require(std::chrono::steady_clock::now() < deadline, "sends that end");
    std::this_thread::sleep_for(std::chrono::milliseconds{1});
  }
}

TEST_CASE("verbs: a completion queue that overflows ends its own connection, and says so") {
  std::optional<VerbsInlining> other;
  std::optional<VerbsInlining> f;
  SUBCASE("its side is the first, which reads what the device tells") {
    f.emplace();
    other.emplace();
    overflow_completions(f->verbs_left());
  }
  SUBCASE("another connection reads it, and wakes whom it concerns") {
    other.emplace();
    f.emplace();
    verbs::VerbsQueuePair& left = f->verbs_left();
    overflow_completions(left);
    auto status = Connection::Status::more;
    // Some kernels complete what was posted little by little.
    while (status == Connection::Status::more || is_ready(left.descriptor(), 100)) {
      status = left.progress(f->heard_by_left());
      REQUIRE((status == Connection::Status::drained || status == Connection::Status::more));
    }
    other->settle();
    CHECK(is_ready(left.descriptor()));
  }
  SUBCASE("the one that read it has gone, and another one has taken over") {
    other.emplace();
    f.emplace();
    other.reset();
    overflow_completions(f->verbs_left());
    other.emplace();
  }
  f->settle();
  CHECK(f->left_failed());
  CHECK(f->verbs_left().failure().find("completion queue overflowed") != std::string::npos);
  other->right().post_receives(1, 0);
  other->left().write_with_immediate({}, {}, {}, 7);
  other->left().flush();
  other->settle();
  CHECK(other->heard_by_right().events.size() == 1);
  CHECK_FALSE(other->left_failed());
}

}  // namespace
}  // namespace rtrs::conformance::verbs_test
