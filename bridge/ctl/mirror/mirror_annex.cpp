// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/mirror/mirror_annex.hpp"

#include <nlohmann/json.hpp>

namespace rnbd {
namespace {

constexpr ProgramWord kWords[] = {
    {"mirror", "status|discard SERVER|add HOST[:PORT] [--force]|force SERVER [--force [--split]]",
     CtlSide::client,
     "The members of a mirror; does without one; takes an empty disk in its place; goes on with "
     "one copy only."},
    {"member", "list|free EXPORT [--force]", CtlSide::server,
     "The exports that are members of mirrors; free: takes the record of one away, so that another "
     "mirror can have it."}};

bool has_mirror(const CtlJson& status) {
  const std::string server = said_text(status, "server");
  return server.starts_with("rnbd-mirror") || server.starts_with("rnbds-mirror");
}

/// A member that comes back, or is away, leaves the disk with fewer copies. With too few, nobody
/// gets an answer.
std::vector<CtlConcern> judge(const CtlJson& mirror) {
  std::vector<CtlConcern> concerns;
  const std::string why_not = said_text(mirror, "trouble");
  if (said(mirror, "attached") == false && !why_not.empty())
    concerns.push_back({CtlHealth::critical, "its requests wait or fail: " + why_not});
  for (const CtlJson& member : said_list(mirror, "members")) {
    const std::string state = said_text(member, "state"), trouble = said_text(member, "trouble");
    if (state == "in step" && trouble.empty()) continue;
    const CtlJson percent = said(member, "progress_percent");
    concerns.push_back(
        {CtlHealth::warning,
         said_text(member, "server") +
             (percent.is_number() ? " recovers, " + percent.dump() + " %" : " is " + state) +
             (trouble.empty() ? "" : ": " + trouble)});
  }
  return concerns;
}

}  // namespace

const CtlAnnex kMirrorAnnex{.name = "mirror",
                            .words = kWords,
                            .question = "mirror status",
                            .has_disk = has_mirror,
                            .judge = judge};

}  // namespace rnbd
