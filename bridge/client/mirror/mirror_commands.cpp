// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/mirror/mirror_commands.hpp"

#include <nlohmann/json.hpp>
#include <string>

#include "bridge/protocol/uuid.hpp"

namespace rnbd::mirror {

const char* name_of(Group::Standing standing) {
  switch (standing) {
    case Group::Standing::away:
      return "away";
    case Group::Standing::waiting:
      return "waiting";
    case Group::Standing::resync:
      return "resync";
    case Group::Standing::in_step:
      return "in step";
  }
  return "?";
}

Json describe(const ClientConfig& config, const MirrorStatus& status) {
  const auto mib = [&](std::uint32_t regions) { return regions * status.region_bytes >> 20; };
  Json answer{{"device", config.device},
              {"group", uuid_text(config.mirror->group)},
              {"attached", status.live},
              {"term", status.term},
              {"unequal_mib", mib(status.unequal)},
              {"losses", status.losses},
              {"trouble", status.trouble},
              {"members", Json::array()}};
  for (const MemberStatus& member : status.members) {
    Json entry{{"server", member.server},
               {"state", name_of(member.progress.standing)},
               {"progress_percent", nullptr},
               {"left_mib", nullptr},
               {"trouble", member.trouble}};
    if (member.progress.standing == Group::Standing::resync && member.to_copy != 0) {
      const std::uint64_t copied = member.to_copy - member.progress.left;
      entry["progress_percent"] = copied * 100 / member.to_copy;
      entry["left_mib"] = mib(member.progress.left);
    }
    answer["members"].push_back(std::move(entry));
  }
  return answer;
}

SessionStatus as_session(const ClientConfig& config, const MirrorStatus& status) {
  SessionStatus whole;
  whole.policy = config.policy;
  whole.trouble = status.trouble;
  for (const MemberStatus& member : status.members) {
    if (status.live && whole.name.empty()) whole.name = member.session.name;
    if (!whole.limits) whole.limits = member.session.limits;
    whole.paths.insert(whole.paths.end(), member.session.paths.begin(), member.session.paths.end());
    if (!member.trouble.empty() && whole.trouble.empty())
      whole.trouble = member.server + ": " + member.trouble;
  }
  if (status.size != 0) whole.devices.push_back({.name = config.device, .size = status.size});
  if (status.size != 0) whole.devices.back().users = 1;
  return whole;
}

}  // namespace rnbd::mirror
