// Verbs: the suite that every transport passes. Runs in the lab, where there is a device.
#include <poll.h>

#include "tests/conformance/verbs_fixture.hpp"

namespace rtrs::conformance {
namespace {

TEST_CASE_TEMPLATE_INVOKE(queue_pair_conformance, VerbsInlining, VerbsWithoutInline);

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

}  // namespace
}  // namespace rtrs::conformance
