// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/write_gate.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace write_gate_test {

using rnbd::WriteGate;

namespace {

bool leave_now(void*) { return true; }

}  // namespace

TEST_CASE("writers enter together, a patch alone") {
  WriteGate gate;
  CHECK(gate.enter_shared({}));
  CHECK(gate.enter_shared({}));
  CHECK_FALSE(gate.enter_exclusive({&leave_now, nullptr}));
  gate.leave_shared();
  gate.leave_shared();
  CHECK(gate.enter_exclusive({}));
  CHECK_FALSE(gate.enter_shared({&leave_now, nullptr}));
  CHECK_FALSE(gate.enter_exclusive({&leave_now, nullptr}));
  gate.leave_exclusive();
  CHECK(gate.enter_shared({}));
  gate.leave_shared();
}

TEST_CASE("a patch that gave up waiting keeps nobody out") {
  WriteGate gate;
  CHECK(gate.enter_shared({}));
  CHECK_FALSE(gate.enter_exclusive({&leave_now, nullptr}));
  CHECK(gate.enter_shared({}));
  gate.leave_shared();
  gate.leave_shared();
  CHECK(gate.enter_exclusive({}));
  gate.leave_exclusive();
}

TEST_CASE("a patch excludes every writer at all times") {
  WriteGate gate;
  std::atomic<int> writers{0};
  std::atomic<int> patches{0};
  std::atomic<int> violations{0};
  int unprotected = 0;  // guarded by the gate alone
  auto write = [&] {
    for (int i = 0; i < 2000; ++i) {
      if (!gate.enter_shared({})) continue;
      ++writers;
      if (patches != 0) ++violations;
      --writers;
      gate.leave_shared();
    }
  };
  auto patch = [&] {
    for (int i = 0; i < 500; ++i) {
      if (!gate.enter_exclusive({})) continue;
      if (++patches != 1 || writers != 0) ++violations;
      ++unprotected;
      --patches;
      gate.leave_exclusive();
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) threads.emplace_back(write);
  for (int i = 0; i < 3; ++i) threads.emplace_back(patch);
  for (auto& thread : threads) thread.join();
  CHECK(violations == 0);
  CHECK(unprotected == 1500);
}

}  // namespace write_gate_test
