// SPDX-License-Identifier: BSD-3-Clause
// Chooses the one that makes room when too many wait at the door.
#pragma once

#include <cstddef>
#include <map>
#include <string_view>

namespace rtrs {

/// The waiting entries of each host. A host that fills the door makes room itself: the first entry
/// of the host with most entries has to go. So a host with few is never pushed out by one with
/// many.
///
/// Threads: pure.
template <class One>
class Crowd {
 public:
  /// In the order in which they came. `host` must stay as long as the crowd.
  void add(std::string_view host, One one) {
    const auto [at, is_new] = hosts_.try_emplace(host, Host{one, 0});
    Host& of = at->second;
    ++of.count;
    // Of two hosts with as many, the one that came first.
    if (most_ == nullptr || of.count > most_->count) most_ = &of;
  }
  /// Null: nobody waits.
  const One* first_of_most() const { return most_ == nullptr ? nullptr : &most_->first; }

 private:
  struct Host {
    One first;
    std::size_t count;
  };
  std::map<std::string_view, Host> hosts_;
  const Host* most_ = nullptr;
};

/// Of "127.0.0.1:40000" or "[::1]:40000".
inline std::string_view host_of(std::string_view peer) { return peer.substr(0, peer.rfind(':')); }

}  // namespace rtrs
