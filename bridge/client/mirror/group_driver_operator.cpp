// SPDX-License-Identifier: BSD-3-Clause
// An operator's orders to a mirror.
#include <algorithm>
#include <cerrno>
#include <utility>

#include "bridge/client/mirror/group_driver.hpp"

namespace rnbd::mirror {
namespace {

tl::unexpected<Failure> refuse(int error, std::string why) {
  return tl::unexpected(Failure{error, std::move(why)});
}

}  // namespace

GroupDriver::Done GroupDriver::force(const std::string& server, bool sure, bool split) {
  const auto member = links_.named(server);
  if (!member) return tl::unexpected(member.error());
  if (live_group() != nullptr)
    return refuse(EALREADY, "the mirror is attached, so nothing has to be forced");
  MirrorStatus status = report();
  links_.complete(status);
  if (status.members[*member].record.blank)
    return refuse(EINVAL,
                  "its disk is new in this mirror, and has nothing of it; force a server that was "
                  "in step");
  if (!sure) return refuse(EPERM, dangers_of_forcing(*member, status));
  if (const std::string used = links_.used_beside(*member); !used.empty() && !split)
    return refuse(EBUSY,
                  "another client uses the mirror, or may use it: " + used +
                      " has said that one writes to it, or has not answered yet. Stop that client, "
                      "and this one can go on with the same servers. With --force --split the disk "
                      "goes on here regardless, and all that the other client writes is lost");
  if (group_ == nullptr || !group_->force(*member))
    return refuse(ENXIO, "that server cannot be used now: " + why_not_attached(status));
  forced_ = true;
  report_.say(rtrs::LogLevel::warning,
              "an operator has it go on with the disk of " + links_.server(*member) + " only");
  return {};
}

GroupDriver::Done GroupDriver::discard(const std::string& server) {
  const auto number = links_.named(server);
  if (!number) return tl::unexpected(number.error());
  if (live_group() == nullptr)
    return refuse(EBUSY,
                  "the mirror is not attached, so that nobody knows whether the others have "
                  "everything; start the servers that it misses, or see mirror force");
  Member& member = members_[*number];
  member.discarded = true;
  if (!group_->discard(*number)) {
    member.discarded = false;
    return refuse(EBUSY, "it has the only good copy of the disk");
  }
  if (member.session.is_open()) drop(*number);
  member.link->let_go(nullptr);
  member.link->set_trouble("discarded by an operator; mirror add puts another server in its place");
  return {};
}

GroupDriver::Done GroupDriver::add(const rtrs::PathAddress& path, bool overwrite) {
  const auto place = std::ranges::find_if(members_, &Member::discarded);
  if (place == members_.end())
    return refuse(ENOSPC, "the mirror has no free place; mirror discard SERVER makes one");
  for (unsigned i = 0; i < members_.size(); ++i)
    if (!members_[i].discarded && links_.server(i) == host_and_port(path))
      return refuse(EEXIST, "that server is a member already");
  place->discarded = false;
  place->overwrite = overwrite;
  place->link->go_to(path);
  return {};
}

}  // namespace rnbd::mirror
