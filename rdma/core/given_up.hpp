// SPDX-License-Identifier: BSD-3-Clause
// Counts cancelled requests that the server may still execute.
#pragma once

#include <atomic>

#include "rdma/wire/ensure.hpp"

namespace rtrs {

/// Counts the requests of one purpose (those to an open device, say) that are cancelled and
/// unresolved: neither answered, nor certain never to be carried out. Requests that were never sent
/// do not count.
///
/// Threads: any; add() and remove() with the lane of the request held.
class GivenUp {
 public:
  void add(bool is_change) { ++count(is_change); }
  /// True: this was the last change, so that newer ones may go.
  bool remove(bool is_change) {
    const unsigned before = count(is_change)--;
    RTRS_ENSURE(before != 0);
    return is_change && before == 1;
  }
  bool any() const { return reads_ != 0 || changes_ != 0; }
  /// Of RTRS direction write: they may overwrite the data of later ones.
  bool changes() const { return changes_ != 0; }

 private:
  std::atomic<unsigned>& count(bool is_change) { return is_change ? changes_ : reads_; }

  std::atomic<unsigned> reads_{0};
  std::atomic<unsigned> changes_{0};
};

}  // namespace rtrs
