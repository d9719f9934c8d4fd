// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/mirror/mirror_commands.hpp"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "bridge/client/mirror/mirror_annex.hpp"
#include "bridge/client/mirror/mirror_config.hpp"
#include "bridge/client/uri.hpp"
#include "bridge/protocol/messages.hpp"
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

namespace {

/// Members are known from the moment on when somebody asks for the disk.
std::string state_of(const MirrorStatus& status) {
  if (!status.dissolves_into.empty())
    return "being dissolved: only " + status.dissolves_into +
           " goes on, once all requests are answered and durable";
  if (status.live) return "attached";
  return status.members.empty() ? "idle: nobody has asked for the disk yet" : "not attached";
}

const char* state_of(const VerifyStatus& verify) {
  switch (verify.pass.state) {
    case Verification::State::none:
      return "none";
    case Verification::State::running:
      return "running";
    case Verification::State::done:
      return "done";
    case Verification::State::stopped:
    case Verification::State::single:
      return "stopped";
  }
  return "?";
}

/// Members of which some units were not compared.
MemberSet lost_of(const Verification& pass) {
  return static_cast<MemberSet>(pass.members & ~pass.everywhere);
}

/// "" unless it has stopped too early, or has not seen all.
const char* why_stopped(const VerifyStatus& verify) {
  if (verify.cut_off) return "the mirror was not attached any more";
  if (verify.pass.state == Verification::State::stopped) return "an operator has stopped it";
  if (verify.pass.state == Verification::State::single)
    return verify.pass.repairs() ? "that server, or all others, were not in step any more"
                                 : "only one server was left in step";
  if (verify.pass.state != Verification::State::done) return "";
  if (lost_of(verify.pass) != 0) return "a server was not in step all the time";
  if (verify.pass.left_out != 0)
    return "parts were left out that are to be made equal; repeat it when `mirror status` has 0 as "
           "unequal_mib";
  return "";
}

std::uint64_t percent_of(const MirrorStatus& status) {
  if (status.regions == 0) return 0;
  return std::uint64_t{status.verify.pass.region} * 100 / status.regions;
}

std::string verify_in_short(const MirrorStatus& status) {
  const VerifyStatus& verify = status.verify;
  if (verify.pass.state == Verification::State::none) return "";
  std::string text = state_of(verify);
  if (verify.pass.is_running()) text += ", " + std::to_string(percent_of(status)) + " %";
  text += ", " + std::to_string(verify.pass.different) + " differences";
  if (verify.pass.repairs()) text += ", " + std::to_string(verify.pass.repaired) + " repaired";
  return text;
}

/// MiB a second, and the seconds for what is left.
void add_pace(Json& entry, double regions_per_second, std::uint32_t left,
              std::uint64_t region_bytes) {
  entry["mib_per_second"] = nullptr;
  entry["seconds_left"] = nullptr;
  if (regions_per_second == 0) return;
  const double mib = static_cast<double>(region_bytes) / (1 << 20);
  entry["mib_per_second"] = std::round(regions_per_second * mib * 10) / 10;
  entry["seconds_left"] = std::lround(std::ceil(left / regions_per_second));
}

}  // namespace

Json describe_verify(const MirrorStatus& status) {
  const VerifyStatus& verify = status.verify;
  const auto mib = [](std::uint64_t sectors) { return sectors * wire::kSectorSize >> 20; };
  constexpr std::uint64_t kNearlyOne = (1 << 20) / wire::kSectorSize - 1;
  const auto names = [&](MemberSet set) {
    Json list = Json::array();
    for (unsigned i = 0; i < status.members.size(); ++i)
      if (has(set, i)) list.push_back(status.members[i].server);
    return list;
  };
  Json answer{{"state", state_of(verify)},
              {"from", verify.from},
              {"progress_percent", percent_of(status)},
              {"different", verify.pass.different},
              {"repaired", verify.pass.repaired},
              {"compared_mib", mib(verify.pass.compared)},
              {"left_out_mib", mib(verify.pass.left_out + kNearlyOne)},
              {"servers", names(verify.pass.everywhere)},
              {"lost", names(lost_of(verify.pass))}};
  add_pace(answer, verify.pace, status.regions - verify.pass.region, status.region_bytes);
  answer["trouble"] = why_stopped(verify);
  return answer;
}

Json describe(const ClientConfig& config, const MirrorStatus& status) {
  const auto mib = [&](std::uint32_t regions) { return regions * status.region_bytes >> 20; };
  Json answer{{"device", config.device},
              {"group", uuid_text(settings_of(config).group)},
              {"uri", status.uri},
              {"attached", status.live},
              {"state", state_of(status)},
              {"term", status.term},
              {"size", status.size},
              {"growth", why_not_grown(status)},
              {"unequal_mib", mib(status.unequal)},
              {"losses", status.losses},
              {"trouble", status.trouble},
              {"verify", verify_in_short(status)},
              {"members", Json::array()}};
  for (const MemberStatus& member : status.members) {
    Json entry{{"server", member.server},
               {"state", member.discarded ? "discarded" : name_of(member.progress.standing)},
               {"progress_percent", nullptr},
               {"left_mib", nullptr},
               {"mib_per_second", nullptr},
               {"seconds_left", nullptr},
               {"view", nullptr},
               {"promised", nullptr},
               {"trouble", why_not_used(member, status)}};
    if (member.votes) entry["role"] = "vote";
    const Membership::Record& record = member.record;
    if (record.view != ViewId{})
      entry["view"] = std::to_string(record.view.term) + "." + std::to_string(record.view.seq);
    if (record.promised != 0) entry["promised"] = record.promised;
    add_pace(entry, member.pace, member.progress.left, status.region_bytes);
    if (member.progress.standing == Group::Standing::resync && member.to_copy != 0) {
      const std::uint64_t copied = member.to_copy - member.progress.left;
      entry["progress_percent"] = copied * 100 / member.to_copy;
      entry["left_mib"] = mib(member.progress.left);
    }
    answer["members"].push_back(std::move(entry));
  }
  return answer;
}

namespace {

using Reply = tl::expected<Json, Failure>;

/// The word before the first blank; `rest` is what follows.
std::string first_word(std::string& rest) {
  const std::size_t blank = std::min(rest.find(' '), rest.size());
  const std::string word = rest.substr(0, blank);
  rest.erase(0, std::min(blank + 1, rest.size()));
  return word;
}

Reply answer_to(const tl::expected<void, Failure>& done) {
  if (!done) return tl::unexpected(done.error());
  return Json::object();
}

/// The URI of the same mirror with one server more.
std::string with_server(std::string uri, const std::string& server) {
  constexpr std::string_view kBefore = "://";
  const std::size_t device = uri.find('/', uri.find(kBefore) + kBefore.size());
  return uri.insert(device, "," + server);
}

Reply add_member(const ClientConfig& config, Mirror& mirror, const std::string& text,
                 bool overwrite) {
  const auto path = parse_path(text, config.paths.front().transport);
  if (!path) return tl::unexpected(Failure{EINVAL, path.error()});
  if (auto added = mirror.add(*path, overwrite); !added) {
    Failure failure = added.error();
    if (failure.error == ENOSPC)
      failure.text +=
          "; `mirror discard SERVER` is for replacing one; for one more copy, start this client "
          "anew with " +
          with_server(mirror.status().uri, text);
    return tl::unexpected(std::move(failure));
  }
  return Json{{"uri", mirror.status().uri}};
}

/// An order about the copies of a mirror that is attached makes no claim: another client may use
/// it.
Failure idle() {
  return {EBUSY, "the mirror is not attached: nobody has asked for the disk here yet"};
}

/// `mirror verify ...`; `rest`: what follows.
Reply about_verify(MirrorSource& source, std::string rest) {
  const std::string word = first_word(rest);
  if (word == "status" && rest.empty()) return describe_verify(source.members());
  const bool stops = word == "stop" && rest.empty();
  const bool begins = word.empty() ? rest.empty() : word == "--from" && !rest.empty();
  if (!stops && !begins)
    return tl::unexpected(Failure{
        EINVAL,
        "write mirror verify [--from SERVER], mirror verify status, or mirror verify stop"});
  const auto mirror = source.present();
  if (mirror == nullptr) return tl::unexpected(idle());
  const auto done = stops ? mirror->end_verify() : mirror->verify(rest);
  if (!done) return tl::unexpected(done.error());
  return describe_verify(source.members());
}

Reply dissolve(MirrorSource& source, const std::string& server) {
  const auto mirror = source.present();
  if (mirror == nullptr) return tl::unexpected(idle());
  auto uri = mirror->dissolve(server);
  if (!uri) return tl::unexpected(uri.error());
  return Json{{"uri", *uri}};
}

}  // namespace

Reply about_mirror(const ClientConfig& config, MirrorSource* source, const std::string& words) {
  std::string rest = words;
  const std::string word = first_word(rest);
  if (source == nullptr) return tl::unexpected(Failure{EOPNOTSUPP, "this disk is no mirror"});
  if (word == "status" && rest.empty()) return describe(config, source->members());
  if (word == "verify") return about_verify(*source, rest);
  const std::string argument = first_word(rest);
  const bool split = word == "force" && rest == "--force --split";
  const bool sure = split || ((word == "force" || word == "add") && rest == "--force");
  if (word == "dissolve" && !argument.empty() && rest.empty()) return dissolve(*source, argument);
  if (!argument.empty() && (rest.empty() || sure)) {
    const auto mirror = source->usable();
    if (word == "add") return add_member(config, *mirror, argument, sure);
    if (word == "discard") return answer_to(mirror->discard(argument));
    if (word == "force") return answer_to(mirror->force(argument, sure, split));
  }
  return tl::unexpected(Failure{EINVAL,
                                "write mirror status, mirror verify [--from SERVER], mirror "
                                "discard SERVER, mirror add HOST[:PORT] [--force], mirror "
                                "force SERVER [--force [--split]], or mirror dissolve SERVER"});
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
