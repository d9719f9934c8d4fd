// SPDX-License-Identifier: BSD-3-Clause
// The commands of a mirror group that members have not answered yet.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>

#include "bridge/client/mirror/group_host.hpp"

namespace rnbd::mirror {

struct SentCommand {
  unsigned member = 0;
  Order order{};
  std::uint64_t operation = 0;
  ViewId view{};
  unsigned about = 0;  ///< member for which the maps were asked
};

/// Sends commands, and finds the command to an answer. A forgotten command has no answer any more.
///
/// Threads: one; pure.
class SentCommands {
 public:
  explicit SentCommands(GroupHost& host) : host_{host} {}

  void post(Command& command, const SentCommand& sent) {
    command.tag = next_tag_++;
    sent_[command.tag] = sent;
    host_.send(command);
  }
  std::optional<SentCommand> answered(std::uint64_t tag) {
    const auto found = sent_.extract(tag);
    if (!found) return {};
    return found.mapped();
  }
  void forget(unsigned member) {
    std::erase_if(sent_, [&](const auto& entry) { return entry.second.member == member; });
  }
  void clear() { sent_.clear(); }

  bool has_flush() const {
    return std::any_of(sent_.begin(), sent_.end(),
                       [](const auto& entry) { return entry.second.order == Order::flush; });
  }
  /// Members with data on the way to them.
  MemberSet written() const {
    MemberSet members = 0;
    for (const auto& [tag, sent] : sent_)
      if (sent.order == Order::copy || sent.order == Order::write)
        members = with(members, sent.member);
    return members;
  }

 private:
  GroupHost& host_;
  std::map<std::uint64_t, SentCommand> sent_;
  std::uint64_t next_tag_ = 1;
};

}  // namespace rnbd::mirror
