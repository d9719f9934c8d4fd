// SPDX-License-Identifier: BSD-3-Clause
// The answer of a call, kept for the case that it is asked for again.
#pragma once

#include <cstdint>
#include <vector>

#include "rdma/wire/endian.hpp"

namespace rtrs::library {

using wire::ConstBytes;

/// A copy, or memory of the handler with the way to give it back.
///
/// Threads: one at a time.
class KeptAnswer {
 public:
  KeptAnswer() = default;
  ~KeptAnswer() { clear(); }
  KeptAnswer(const KeptAnswer&) = delete;
  KeptAnswer& operator=(const KeptAnswer&) = delete;

  ConstBytes bytes() const { return bytes_; }
  /// Throws std::bad_alloc.
  void copy(ConstBytes answer);
  void hold(ConstBytes answer, void (*release)(void*), void* context);
  void clear();

 private:
  ConstBytes bytes_;
  std::vector<std::byte> copy_;  ///< its memory stays for the next call
  void (*release_)(void*) = nullptr;
  void* context_ = nullptr;
};

}  // namespace rtrs::library
