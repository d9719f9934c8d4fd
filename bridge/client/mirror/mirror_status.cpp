// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/mirror/mirror_status.hpp"

#include <algorithm>
#include <system_error>
#include <utility>

#include "bridge/protocol/mirror_messages.hpp"

namespace rnbd::mirror {
namespace {

constexpr const char* kNameThePresent = "name the servers as `mirror add` has printed them";

std::string names_of(MemberSet set, const MirrorStatus& status) {
  std::string names;
  for (unsigned i = 0; i < status.members.size(); ++i)
    if (has(set, i)) names += (names.empty() ? "" : " and ") + status.members[i].server;
  return names;
}

bool is_there(const MemberStatus& member) {
  return member.trouble.empty() && member.progress.standing != Group::Standing::away;
}

/// The reason why its newest attempt to reach the server failed, if no path has come; "" = it has,
/// or none has failed yet.
std::string why_no_path(const SessionStatus& session) {
  std::string why;
  for (const rtrs::PathStatus& path : session.paths) {
    if (path.state == rtrs::PathState::connected || path.trouble.empty()) return "";
    why = path.trouble;
  }
  return why;
}

/// True if its server may be about to say that it has newer data than others.
bool is_being_asked(const MemberStatus& member) {
  const bool is_asked = !member.votes && !member.discarded && !member.hangs;
  return is_asked && member.trouble.empty() && !member.record.told &&
         why_no_path(member.session).empty();
}

/// True if the record has a vote in step, and the mirror's URI names none.
bool lacks_vote(const Membership::Record& record, const MirrorStatus& status) {
  const auto is_vote = [](const MemberStatus& member) { return member.votes; };
  const auto disks = static_cast<unsigned>(status.members.size());
  return record.told && has(record.set, disks) && std::ranges::none_of(status.members, is_vote);
}

/// Of a member that has answered while the mirror attaches.
std::string what_it_waits_for(const MemberStatus& member, const MirrorStatus& status) {
  const Membership::Record& record = member.record;
  if (record.blank && member.votes) return "it knows nothing of this mirror, and votes for nothing";
  if (record.blank) return "its disk is new in this mirror";
  if (record.displaced) return "another disk has had its place in this mirror since";
  if (record.set_back)
    return "was set back to an earlier state, as by a snapshot, so it is no copy";
  if (record.older)
    return "its record is an older one: it has in step " + names_of(record.set, status);
  MemberSet missing = 0;
  for (unsigned i = 0; i < status.members.size(); ++i)
    if ((!record.told || has(record.set, i)) && !is_there(status.members[i]))
      missing = with(missing, i);
  std::string waits = missing != 0 ? "waits for " + names_of(missing, status) : "";
  if (lacks_vote(record, status))
    waits += (waits.empty() ? std::string{"waits for "} : " and ") +
             "the vote that its record has in step; name its server as vote= again";
  if (!record.told) return waits.empty() ? "its record is being read" : waits;
  return waits + (waits.empty() ? "" : ": ") + "its record has in step " +
         names_of(record.set, status);
}

/// A member may have gone on alone before it became what it is. Only a person knows that. The disk
/// that has the place of another one is the mirror's, and may be there.
std::string way_out(const MirrorStatus& status) {
  const auto displaced = [](const MemberStatus& member) { return member.record.displaced; };
  if (std::ranges::any_of(status.members, displaced)) return std::string{"; "} + kNameThePresent;
  const MemberStatus* newest = nullptr;
  std::string former;
  const auto name = [&former](const MemberStatus& member, const char* what) {
    former += (former.empty() ? "" : " and ") + std::string{what} + member.server;
  };
  for (const MemberStatus& member : status.members) {
    if (!member.trouble.empty() || !member.record.told || member.votes) continue;
    const Membership::Record& record = member.record;
    if (record.blank) name(member, "the former disk of ");
    if (record.set_back) name(member, "the later state of ");
    const bool counts = !record.blank && !record.set_back;
    if (counts && !record.older && newest == nullptr) newest = &member;
  }
  if (former.empty() || newest == nullptr) return "";
  return "; " + former + " may have newer data than " + newest->server +
         ": bring it back, or, if it is lost, go on with " + newest->server +
         " by `rnbd-ctl SOCKET mirror force " + newest->server + "`";
}

/// Of a member that an operator may force.
std::string what_its_record_says(unsigned number, const MirrorStatus& status) {
  const Membership::Record& record = status.members[number].record;
  if (!record.told) return "nothing is known of its record yet";
  if (record.displaced)
    return std::string{"another disk has had its place in this mirror since; "} + kNameThePresent +
           " instead";
  if (record.set_back) return "it was set back to an earlier state, as by a snapshot";
  const auto newest = std::ranges::find_if(status.members, [](const MemberStatus& member) {
    return member.record.told && !member.record.older;
  });
  if (record.older && newest != status.members.end())
    return "its record is an older one than that of " + newest->server;
  return "its record has in step " + names_of(record.set, status);
}

}  // namespace

std::string words_of_hanging(const std::string& server) {
  return "it leaves a request without an answer, as a disk that hangs does, and others wait for "
         "it; "
         "`rnbd-ctl SOCKET mirror discard " +
         server + "` goes on without it";
}

std::string words_of_doubt(std::uint64_t promised, const std::string& other,
                           std::uint64_t its_term) {
  return "its record has promised term " + std::to_string(promised) + ", and that of " + other +
         " has term " + std::to_string(its_term) +
         ": hundreds of decisions that operators have forced lie between them, or one of the two "
         "is damaged; it is not used before a second server knows of them";
}

std::string words_of_shut_out(std::uint64_t own, std::uint64_t term, const std::string& others,
                              bool several) {
  const std::string own_term =
      own != 0 ? "its record has term " + std::to_string(own) : "its log says which term it has";
  const std::string terms = own_term + ", and the mirror has term " + std::to_string(term) +
                            (others.empty() ? std::string{} : ", by the record of " + others);
  if (!several)
    return terms +
           ": hundreds of decisions that operators have forced lie between them, or one of the "
           "records is damaged; no second server knows of them";
  return terms +
         ": it knows nothing of hundreds of decisions that operators have forced since it was last "
         "in step, so the others have all that is needed: take its record away there (`rnbd-ctl "
         "SERVER member free`), and it gets a full copy";
}

std::string words_of_failing(const std::string& server, int error, std::chrono::minutes wait) {
  return "its disk fails again and again, the last time with: " +
         std::generic_category().message(error) + "; it is tried again after " +
         std::to_string(wait.count()) +
         " min; see its log, and replace the disk: `rnbd-ctl SOCKET mirror discard " + server +
         "` and `mirror add`";
}

std::string words_of_growth(const std::string& server, int error) {
  const std::string again = "; it is tried again every half a minute";
  if (server.empty())
    return "requests were under way for a second, as on a disk that is slow or hangs" + again;
  if (error == ENOSPC)
    return server +
           " cannot record a larger one, as its log says: make room in its state directory" + again;
  if (error == EINVAL) return "the disk of " + server + " has become smaller meanwhile" + again;
  if (error == 0) return server + " keeps it, as older servers do";
  return server + " does not record a larger one: " + std::generic_category().message(error) +
         again;
}

std::string why_not_used(const MemberStatus& member, const MirrorStatus& status) {
  using Standing = Group::Standing;
  if (!member.trouble.empty()) return member.trouble;
  if (member.hangs) return words_of_hanging(member.server);
  if (member.progress.standing >= Standing::resync) return "";
  if (member.progress.standing == Standing::away) {
    const std::string why = why_no_path(member.session);
    return "has not answered yet" + (why.empty() ? why : ": " + why);
  }
  if (member.record.promised > status.term)
    return "is there, and has promised term " + std::to_string(member.record.promised) +
           " to another client; this one has term " + std::to_string(status.term) +
           ", and claims it with a higher one as soon as no view is under way";
  return "is there, and " +
         (status.live ? "is about to be taken in" : what_it_waits_for(member, status));
}

std::string why_not_grown(const MirrorStatus& status) {
  const auto has_room = [&](const MemberStatus& member) {
    return member.room >= status.size + status.block;
  };
  if (!status.live || std::ranges::none_of(status.members, has_room)) return "";
  if (status.size % status.block != 0)
    return "it keeps its size, which is no multiple of " + std::to_string(status.block) + " bytes";
  MemberSet silent = 0, small = 0, away = 0;
  for (unsigned i = 0; i < status.members.size(); ++i) {
    const MemberStatus& member = status.members[i];
    if (member.votes || member.discarded || has_room(member)) continue;
    const bool is_used = member.progress.standing == Group::Standing::in_step;
    MemberSet& set = !is_used ? away : member.room == 0 ? silent : small;
    set = with(set, i);
  }
  if (away != 0)
    return "it grows when " + names_of(away, status) + (size(away) == 1 ? " is" : " are") +
           " in step, or discarded";
  if (silent != 0)
    return names_of(silent, status) + " does not say how large its disk is, as older servers do";
  if (small != 0)
    return "it grows when the disk of " + names_of(small, status) + " is enlarged, too, beyond " +
           std::to_string(status.size) + " bytes";
  const std::uint64_t most = std::uint64_t{wire::kMaxGrownRegions - 1} * status.region_bytes;
  if (status.size + status.block > most)
    return "it has as many regions as it can have; to have a larger one, dissolve it and begin "
           "anew";
  return status.growth;
}

std::string why_not_attached(const MirrorStatus& status) {
  std::string text;
  for (const MemberStatus& member : status.members)
    text += (text.empty() ? "" : ", ") + member.server + " (" + why_not_used(member, status) + ")";
  if (status.lacks_history)
    text +=
        "; an operator has forced one of the servers to go on, and none of those that are there "
        "has "
        "recorded that: start it, or, if it is lost, force another one";
  return text + way_out(status);
}

std::string asked_beside(unsigned member, const MirrorStatus& status) {
  MemberSet asked = 0;
  for (unsigned i = 0; i < status.members.size(); ++i)
    if (i != member && is_being_asked(status.members[i])) asked = with(asked, i);
  return names_of(asked, status);
}

std::string dangers_of_forcing(unsigned member, const MirrorStatus& status) {
  MemberSet copies = 0, kept = 0;
  for (unsigned i = 0; i < status.members.size(); ++i) {
    if (i == member || status.members[i].votes) continue;
    MemberSet& set = status.members[i].record.displaced ? kept : copies;
    set = with(set, i);
  }
  std::string text = "WARNING: " + status.members[member].server +
                     " may lack writes that were answered, or have some that were not: " +
                     what_its_record_says(member, status) +
                     ". With --force its disk becomes the only good one. All that only the others "
                     "have is lost";
  if (copies != 0)
    text += ": " + names_of(copies, status) + (size(copies) == 1 ? " gets" : " get") +
            " a full copy of it when " + (size(copies) == 1 ? "it is" : "they are") + " back";
  if (kept != 0)
    text += "; nothing is copied to " + names_of(kept, status) +
            ", as another disk has had that place since";
  for (const MemberStatus& vote : status.members)
    if (vote.votes && !is_there(vote))
      text += ". The vote of " + vote.server +
              " is away, and may know that another disk has gone on alone";
  return text +
         ". Start the others instead if that is possible. File systems on the disk should be "
         "checked afterwards";
}

}  // namespace rnbd::mirror
