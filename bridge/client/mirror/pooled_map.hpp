// SPDX-License-Identifier: BSD-3-Clause
// A map by number that keeps its memory.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace rnbd::mirror {

/// A std::map that allocates memory only when it has more entries than ever before. Values keep
/// their places.
///
/// Threads: one; pure.
template <class Value>
class PooledMap : std::map<std::uint64_t, Value> {
  using Map = std::map<std::uint64_t, Value>;

 public:
  using Map::at, Map::begin, Map::contains, Map::empty, Map::end, Map::find, Map::lower_bound,
      Map::size;

  /// The number is new. The value is one that was used before, perhaps.
  Value& add(std::uint64_t number) {
    if (spare_.empty()) return Map::try_emplace(number).first->second;
    auto node = std::move(spare_.back());
    spare_.pop_back();
    node.key() = number;
    return Map::insert(Map::end(), std::move(node))->second;
  }
  void erase(std::uint64_t number) {
    if (const auto found = Map::find(number); found != Map::end()) erase(found);
  }
  /// Returns the next one.
  typename Map::iterator erase(typename Map::iterator entry) {
    const auto next = std::next(entry);
    spare_.push_back(Map::extract(entry));
    return next;
  }
  std::optional<Value> take(std::uint64_t number) {
    const auto found = Map::find(number);
    if (found == Map::end()) return {};
    std::optional<Value> value{std::move(found->second)};
    erase(found);
    return value;
  }
  void clear() {
    for (auto entry = Map::begin(); entry != Map::end();) entry = erase(entry);
  }

 private:
  std::vector<typename Map::node_type> spare_;
};

}  // namespace rnbd::mirror
