// SPDX-License-Identifier: BSD-3-Clause
#include "tests/unit/allocations.hpp"

#include <atomic>
#include <cstdlib>
#include <new>
#include <utility>

namespace rtrs::test {
namespace {

std::atomic<std::size_t> counted = 0;
thread_local Lack lack;

bool is_refused() {
  if (lack.refused == 0) return false;
  if (lack.left != 0) return --lack.left, false;
  return --lack.refused, true;
}

}  // namespace

std::size_t allocations() { return counted; }
Lack set_lack(Lack wanted) { return std::exchange(lack, wanted); }

}  // namespace rtrs::test

// All forms that operator delete below gives back, or a sanitizer finds another one's memory there.
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  ++rtrs::test::counted;
  return rtrs::test::is_refused() ? nullptr : std::malloc(size);
}
void* operator new(std::size_t size) {
  void* const memory = operator new(size, std::nothrow);
  if (memory == nullptr) throw std::bad_alloc{};
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
