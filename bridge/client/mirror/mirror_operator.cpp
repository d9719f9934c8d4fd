// SPDX-License-Identifier: BSD-3-Clause
// An operator's orders to a mirror.
#include <algorithm>
#include <cerrno>
#include <future>
#include <utility>

#include "bridge/client/mirror/mirror.hpp"
#include "bridge/protocol/uuid.hpp"

namespace rnbd::mirror {
namespace {

using Done = tl::expected<void, Failure>;

Done refuse(int error, std::string why) { return tl::unexpected(Failure{error, std::move(why)}); }

/// The characters that a URI has for itself.
std::string percent_encoded(const std::string& text) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  std::string encoded;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte > ' ' && byte < 0x7F && c != '%' && c != '?' && c != '#') {
      encoded += c;
    } else {
      encoded += '%';
      encoded += kDigits[byte >> 4];
      encoded += kDigits[byte & 15];
    }
  }
  return encoded;
}

}  // namespace

/// Has the thread answer a question.
Done Mirror::ask(std::function<Done()> question) {
  constexpr std::chrono::seconds kPatience{5};
  begin();
  const auto task = std::make_shared<std::packaged_task<Done()>>(std::move(question));
  auto answer = task->get_future();
  post([task] { (*task)(); });
  if (answer.wait_for(kPatience) == std::future_status::ready) return answer.get();
  return refuse(ETIMEDOUT, "the mirror is busy; look at its status, and try again");
}

tl::expected<unsigned, Failure> Mirror::member_named(const std::string& server) const {
  std::string all;
  for (unsigned i = 0; i < members_.size(); ++i) {
    const std::string name = server_of(i);
    if (name == server) return i;
    all += (all.empty() ? "" : ", ") + name;
  }
  return tl::unexpected(Failure{ENOENT, "no member is called that; write one of: " + all});
}

Done Mirror::force(const std::string& server, bool sure) {
  return ask([this, server, sure]() -> Done {
    const auto member = member_named(server);
    if (!member) return tl::unexpected(member.error());
    if (group_ != nullptr && group_->live())
      return refuse(EALREADY, "the mirror is attached, so nothing has to be forced");
    if (!sure) return refuse(EPERM, dangers_of_forcing(*member));
    return force_now(*member);
  });
}

std::string Mirror::dangers_of_forcing(unsigned member) const {
  std::string others;
  for (unsigned i = 0; i < members_.size(); ++i)
    if (i != member) others += (others.empty() ? "" : ", ") + server_of(i);
  return "WARNING: " + server_of(member) +
         " may lack writes that were answered, or have some that were not. With --force its disk "
         "becomes the only good one. All that only the others have is lost: " +
         others +
         " get a full copy of it when they are back. Start them instead if that is possible. "
         "File systems on the disk should be checked afterwards";
}

Done Mirror::force_now(unsigned member) {
  if (group_ == nullptr || !group_->force(member))
    return refuse(ENXIO, "that server cannot be used now: " + troubles());
  forced_ = true;
  say(rtrs::LogLevel::warning,
      "an operator has it go on with the disk of " + server_of(member) + " only");
  return {};
}

Done Mirror::discard(const std::string& server) {
  return ask([this, server]() -> Done {
    const auto member = member_named(server);
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
  if (member.open != nullptr) drop(number);
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
      if (!members_[i].discarded && server_of(i) == host_and_port(path))
        return refuse(EEXIST, "that server is a member already");
    place->discarded = false;
    place->link->go_to(path);
    return {};
  });
}

/// As another member finds it.
std::string Mirror::uri_of(unsigned member) const {
  const auto config = members_[member].link->config();
  return config->server() + "/" + percent_encoded(config->device);
}

std::string Mirror::uri() const {
  std::string servers;
  for (unsigned i = 0; i < members_.size(); ++i) servers += (i == 0 ? "" : ",") + server_of(i);
  const std::string scheme = config_.server().substr(0, config_.server().find("://"));
  return scheme + "://" + servers + "/" + percent_encoded(config_.device) +
         "?group=" + uuid_text(config_.mirror->group);
}

}  // namespace rnbd::mirror
