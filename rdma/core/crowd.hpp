// SPDX-License-Identifier: BSD-3-Clause
// Chooses the one that makes room when too many wait to come in.
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

namespace rtrs {

/// The waiting entries of each host. A host that fills all places makes room itself: the first
/// entry of the host with most entries has to go. So a host with few is never pushed out by one
/// with many.
///
/// A host is a name, or several with a slash between them: the network that it is in, a smaller one
/// in there, and so on. Then the largest crowd is looked for among the first names, and in there
/// among the next ones. So an owner of a network gains nothing by coming from all of its addresses.
///
/// Threads: pure.
template <class One>
class Crowd {
 public:
  /// In the order in which they came. `host` must stay as long as the crowd.
  void add(std::string_view host, One one) { waiting_.push_back({host, one}); }
  /// None: nobody waits.
  std::optional<One> first_of_most() const {
    if (waiting_.empty()) return std::nullopt;
    std::vector<Waiting> crowd = waiting_;
    std::string_view name;
    do {
      const std::size_t known = name.size();
      name = most_of(crowd, known);
      std::erase_if(crowd, [&](const Waiting& each) { return name_of(each, known) != name; });
    } while (name.size() < crowd.front().host.size());
    return crowd.front().one;
  }

 private:
  struct Waiting {
    std::string_view host;
    One one;
  };

  /// Up to the end of the name that begins behind `known` bytes.
  static std::string_view name_of(const Waiting& each, std::size_t known) {
    return each.host.substr(0, each.host.find('/', known + 1));
  }
  /// The host with most entries; of two with as many, the one that came first.
  static std::string_view most_of(const std::vector<Waiting>& crowd, std::size_t known) {
    std::map<std::string_view, std::size_t> counts;
    for (const Waiting& each : crowd) ++counts[name_of(each, known)];
    const auto count_of = [&](const Waiting& each) { return counts.at(name_of(each, known)); };
    return name_of(*std::ranges::max_element(crowd, {}, count_of), known);
  }

  std::vector<Waiting> waiting_;
};

/// The host in "127.0.0.1:40000" or "[::1]:40000".
inline std::string_view host_of(std::string_view peer) { return peer.substr(0, peer.rfind(':')); }

}  // namespace rtrs
