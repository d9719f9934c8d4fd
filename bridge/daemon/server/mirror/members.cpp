// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/server/mirror/members.hpp"

#include <algorithm>
#include <cerrno>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "bridge/client/uri.hpp"
#include "bridge/daemon/server/mirror/member_files.hpp"
#include "bridge/daemon/server/mirror/peer_members.hpp"
#include "bridge/daemon/server/rights_check.hpp"
#include "bridge/protocol/uuid.hpp"
#include "bridge/server/mirror/mirror_annex.hpp"
#include "bridge/server/mirror/vote_backend.hpp"

namespace rnbd::mirror {
namespace {

constexpr const char* kPull = "pull";

/// "on", or the keys for it, as in a URI.
std::string set_pull(Settings& settings, const std::string& value) {
  settings.of_annexes[kPull] = value;
  if (value == "on") return "";
  const auto uri = parse_device_uri("rnbds+tcp://any/disk?" + value);
  if (!uri) return uri.error();
  for (const auto& [key, file] : uri->options) {
    const bool known = key == "tls-psk-file" || key == "tls-certificates" || key == "tls-verify" ||
                       key == "auth-psk-file";
    if (!known) return "'" + key + "' is no key to show; write on, or e.g. tls-psk-file=FILE";
  }
  return uri->options.empty() ? "write on, or e.g. tls-psk-file=FILE" : "";
}

constexpr const char* kVotes = "votes";
constexpr std::string_view kVoteStorage = "vote:";

/// "on", or who may have them, as of an export.
std::string set_votes(Settings& settings, const std::string& value) {
  constexpr std::string_view kUsers = "rw=";
  settings.of_annexes[kVotes] = value;
  ExportSpecification votes;
  votes.name = wire::kVotesName;
  votes.storage = kVoteStorage;
  votes.description = "votes of mirrors";
  votes.hidden = true;
  if (value.starts_with(kUsers)) {
    if (std::string wrong = add_patterns(votes.rights.rw, value.substr(kUsers.size()));
        !wrong.empty())
      return wrong;
  } else if (value != "on") {
    return "write on, or e.g. rw=host1,host2 where clients prove who they are";
  }
  settings.exports.push_back(std::move(votes));
  return "";
}

constexpr SettingRule kRules[] = {
    {kVotes, "on|rw=USER[,...]", "on",
     "Be the vote of mirrors, whose disks are at other servers: their clients write vote=HOST into "
     "the URI. It needs a state directory. With users, only these may have their votes here.",
     set_votes},
    {kPull, "on|KEY=VALUE[&...]", "on",
     "Let the client of a mirror have this server copy what it missed from another member, "
     "instead of moving it itself. With keys, as behind '?' in a URI, it shows them to that one: "
     "tls-psk-file=FILE, tls-certificates=DIRECTORY, auth-psk-file=FILE.",
     set_pull},
};

/// Null: this server copies nothing from other members.
std::unique_ptr<PullReader> reader_of(const AnnexStart& start) {
  const auto keys = start.settings.of_annexes.find(kPull);
  if (keys == start.settings.of_annexes.end()) return nullptr;
  return std::make_unique<PeerMembers>(keys->second, start.log);
}

tl::expected<std::shared_ptr<ServerAnnex>, std::string> open(const AnnexStart& start) {
  std::shared_ptr<MemberStore> store;
  std::shared_ptr<Votes> votes;
  const bool has_votes = start.settings.of_annexes.contains(kVotes);
  if (has_votes && start.directory.empty())
    return tl::unexpected(std::string{"votes need one, which keeps them"});
  if (!start.directory.empty()) {
    auto files = MemberFiles::open(start.directory + "/members");
    if (!files) return tl::unexpected(files.error());
    store = *std::move(files);
  }
  if (has_votes) {
    auto files = MemberFiles::open(start.directory + "/votes", MemberFiles::Keep::closed);
    if (!files) return tl::unexpected(files.error());
    const auto recorded = (*files)->all();
    if (!recorded) return tl::unexpected(recorded.error());
    const std::uint64_t epoch = std::max<std::uint64_t>(start.volatile_epoch, 1);
    votes = std::make_shared<Votes>(*files, epoch, *recorded);
  }
  return std::make_shared<MirrorAnnex>(std::move(store), start.volatile_epoch, reader_of(start),
                                       std::move(votes));
}

// ---- Commands -----------------------------------------------------------------------------------

constexpr const char* kVoteWord = "vote";

/// Members count from 1 on for people.
Json describe(const std::string& name, const std::string& used_by, const SeatStatus& seat) {
  const MemberRecord& record = seat.state.record;
  Json entry{{"export", name},     {"group", nullptr},       {"member", nullptr},
             {"members", nullptr}, {"size", nullptr},        {"view", nullptr},
             {"in_step", nullptr}, {"promised", nullptr},    {"served", seat.served},
             {"used_by", used_by}, {"trouble", seat.trouble}};
  if (record.members == 0) return entry;
  const bool is_vote = seat.state.shape.is_vote();
  entry["group"] = uuid_text(seat.state.group);
  entry["member"] = is_vote ? Json(kVoteWord) : Json(record.number + 1);
  entry["members"] = record.members;
  if (!is_vote) entry["size"] = seat.state.shape.size;
  entry["view"] = std::to_string(record.view.id.term) + "." + std::to_string(record.view.id.seq);
  entry["promised"] = record.promised;
  std::string in_step;
  for (unsigned k = 0; k < record.members; ++k)
    if (has(record.view.set, k)) in_step += (in_step.empty() ? "" : ",") + std::to_string(k + 1);
  if (record.members < kMaxMembers && has(record.view.set, kVote))
    in_step += std::string{","} + kVoteWord;
  entry["in_step"] = in_step;
  return entry;
}

/// The name is one that `member list` has.
std::string name_of_vote(const wire::Uuid& group) {
  return std::string{wire::kVotesName} + "/" + uuid_text(group);
}

/// Those of this server; empty where it has none.
std::vector<Votes::Entry> votes_of(const ExportCatalogue& catalogue) {
  const auto* const annex = part_of<MirrorAnnex>(catalogue.annexes());
  if (annex == nullptr || annex->votes() == nullptr) return {};
  return annex->votes()->recorded();
}

tl::expected<Json, rtrs::Failure> about_members(const ExportCatalogue& catalogue,
                                                const std::string& words) {
  const auto storages = catalogue.storages();
  if (words == "list") {
    Json answer{{"members", Json::array()}};
    for (const auto& [name, storage] : storages) {
      const Seat* const seat = part_of<Seat>(storage->annexes());
      const auto status = seat != nullptr ? seat->status() : std::nullopt;
      if (!status) continue;
      const auto who = catalogue.who_has(name, wire::kMirrorFeatures);
      answer["members"].push_back(describe(name, who ? who->text : "", *status));
    }
    for (const auto& [group, seat] : votes_of(catalogue))
      if (const auto status = seat->status())
        answer["members"].push_back(describe(name_of_vote(group), "", *status));
    return answer;
  }
  constexpr std::string_view kFree = "free ", kForce = " --force";
  if (!words.starts_with(kFree))
    return tl::unexpected(
        rtrs::Failure{EINVAL, "write member list, or member free EXPORT [--force]"});
  const bool sure = words.ends_with(kForce);
  const auto length = words.size() - kFree.size() - (sure ? kForce.size() : 0);
  const std::string wanted = words.substr(kFree.size(), length);
  for (const auto& [name, storage] : storages) {
    Seat* const seat = part_of<Seat>(storage->annexes());
    if (name != wanted || seat == nullptr) continue;
    if (auto freed = seat->free(sure); !freed) return tl::unexpected(freed.error());
    return Json::object();
  }
  for (const auto& [group, seat] : votes_of(catalogue)) {
    if (name_of_vote(group) != wanted) continue;
    if (auto freed = seat->free(sure); !freed) return tl::unexpected(freed.error());
    return Json::object();
  }
  return tl::unexpected(
      rtrs::Failure{ENOENT, "there is no member '" + wanted + "'; `member list` tells of all"});
}

std::vector<ControlCommand> commands(const ExportCatalogue& catalogue) {
  return {
      {"member", "list|free EXPORT [--force]",
       "The exports that are members of mirrors, and the votes, as their records say; free takes a "
       "record away",
       [&catalogue](const std::string& words) { return about_members(catalogue, words); }}};
}

}  // namespace

const DaemonAnnex kMembers{.settings = kRules,
                           .features = wire::kMirrorFeatures,
                           .open = &open,
                           .commands = &commands,
                           .storage = kVoteStorage,
                           .open_storage = &open_votes};

}  // namespace rnbd::mirror
