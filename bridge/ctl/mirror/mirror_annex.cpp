// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/mirror/mirror_annex.hpp"

#include <nlohmann/json.hpp>

namespace rnbd {
namespace {

constexpr ProgramWord kWords[] = {
    {"mirror",
     "status|verify [--from SERVER]|discard SERVER|add HOST[:PORT] [--force]|force SERVER [--force "
     "[--split]]|dissolve SERVER",
     CtlSide::client,
     "The members of a mirror; compares their copies, and repairs them from one; does without one; "
     "takes an empty disk in its place; goes on with one copy only; makes one a plain disk again."},
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

std::string_view progress_of(const std::vector<std::string>& words) {
  const bool begins = words.size() > 1 && words[0] == "mirror" && words[1] == "verify" &&
                      (words.size() == 2 || words[2] == "--from");
  return begins ? "mirror verify status" : "";
}

/// 0 if all copies that were in step have been compared as a whole, and are equal now.
std::optional<int> outcome_of_verify(const CtlJson& answer) {
  const std::string state = said_text(answer, "state");
  if (state == "running") return std::nullopt;
  const bool equal = said_number(answer, "different") == said_number(answer, "repaired");
  const bool whole = said_number(answer, "left_out_mib") == 0 && said_list(answer, "lost").empty();
  return state == "done" && equal && whole ? 0 : 1;
}

}  // namespace

const CtlAnnex kMirrorAnnex{.name = "mirror",
                            .words = kWords,
                            .question = "mirror status",
                            .has_disk = has_mirror,
                            .judge = judge,
                            .progress_of = progress_of,
                            .outcome = outcome_of_verify};

}  // namespace rnbd
