// SPDX-License-Identifier: BSD-3-Clause
// An operator's orders to a mirror.
#include <algorithm>
#include <cerrno>
#include <future>
#include <utility>

#include "bridge/client/mirror/mirror.hpp"

namespace rnbd::mirror {
namespace {

using Done = tl::expected<void, Failure>;

Done refuse(int error, std::string why) { return tl::unexpected(Failure{error, std::move(why)}); }

}  // namespace

/// Has the thread answer a question.
Done Mirror::ask(std::function<Done()> question) {
  constexpr std::chrono::seconds kPatience{5};
  begin();
  const auto task = std::make_shared<std::packaged_task<Done()>>(std::move(question));
  auto answer = task->get_future();
  door_.post([task] { (*task)(); });
  if (answer.wait_for(kPatience) == std::future_status::ready) return answer.get();
  return refuse(ETIMEDOUT, "the mirror is busy; look at its status, and try again");
}

Done Mirror::force(const std::string& server, bool sure) {
  return ask([this, server, sure]() -> Done {
    const auto member = links_.named(server);
    if (!member) return tl::unexpected(member.error());
    if (group_ != nullptr && group_->live())
      return refuse(EALREADY, "the mirror is attached, so nothing has to be forced");
    if (!sure) return refuse(EPERM, links_.dangers_of_forcing(*member));
    return force_now(*member);
  });
}

Done Mirror::force_now(unsigned member) {
  if (group_ == nullptr || !group_->force(member))
    return refuse(ENXIO, "that server cannot be used now: " + links_.troubles());
  forced_ = true;
  report_.say(rtrs::LogLevel::warning,
              "an operator has it go on with the disk of " + links_.server(member) + " only");
  return {};
}

Done Mirror::discard(const std::string& server) {
  return ask([this, server]() -> Done {
    const auto member = links_.named(server);
    if (!member) return tl::unexpected(member.error());
    return discard_now(*member);
  });
}

Done Mirror::discard_now(unsigned number) {
  if (group_ == nullptr || !group_->live())
    return refuse(EBUSY,
                  "the mirror is not attached, so that nobody knows whether the others have "
                  "everything; start the servers that it misses, or see mirror force");
  if (group_->in_step() == bit(number))
    return refuse(EBUSY, "it has the only good copy of the disk");
  Member& member = members_[number];
  member.discarded = true;
  group_->discard(number);
  if (member.session.is_open()) drop(number);
  member.link->let_go(nullptr);
  member.link->set_trouble("discarded by an operator; mirror add puts another server in its place");
  return {};
}

Done Mirror::add(const rtrs::PathAddress& path) {
  return ask([this, path]() -> Done {
    const auto place = std::ranges::find_if(members_, &Member::discarded);
    if (place == members_.end())
      return refuse(ENOSPC, "the mirror has no free place; mirror discard SERVER makes one");
    for (unsigned i = 0; i < members_.size(); ++i)
      if (!members_[i].discarded && links_.server(i) == host_and_port(path))
        return refuse(EEXIST, "that server is a member already");
    place->discarded = false;
    place->link->go_to(path);
    return {};
  });
}

}  // namespace rnbd::mirror
