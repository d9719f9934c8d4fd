// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/library/kept_answer.hpp"

#include <utility>

namespace rtrs::library {
namespace {

/// Larger answers are rare; their memory is not kept for the next one.
constexpr std::size_t kKeptRoom = 64 * 1024;

}  // namespace

void KeptAnswer::copy(ConstBytes answer) {
  clear();
  copy_.assign(answer.begin(), answer.end());
  bytes_ = copy_;
}

void KeptAnswer::hold(ConstBytes answer, void (*release)(void*), void* context) {
  clear();
  bytes_ = answer;
  release_ = release;
  context_ = context;
}

void KeptAnswer::clear() {
  bytes_ = {};
  auto* const release = std::exchange(release_, nullptr);
  if (release != nullptr) release(context_);
  copy_.clear();
  if (copy_.capacity() > kKeptRoom) copy_ = {};
}

}  // namespace rtrs::library
