// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/library/birthplace.hpp"

#include <pthread.h>

namespace rtrs::library {

std::atomic<unsigned> forks{0};

namespace {

void after_in_child() { forks.fetch_add(1, std::memory_order_relaxed); }

/// Before main(), or while the library is loaded.
[[maybe_unused]] const int are_told = pthread_atfork(nullptr, nullptr, after_in_child);

}  // namespace
}  // namespace rtrs::library
