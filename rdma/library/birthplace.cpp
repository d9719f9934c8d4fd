// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/library/birthplace.hpp"

#include <pthread.h>

#include "rdma/library/large_memory.hpp"

namespace rtrs::library {

std::atomic<unsigned> forks{0};

namespace {

void after_in_child() {
  forks.fetch_add(1, std::memory_order_relaxed);
  large_memory_after_fork();
}

/// Before main(), or while the library is loaded.
[[maybe_unused]] const int are_told =
    pthread_atfork(large_memory_before_fork, large_memory_after_fork, after_in_child);

}  // namespace
}  // namespace rtrs::library
