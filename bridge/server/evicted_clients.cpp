// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/server/evicted_clients.hpp"

#include <algorithm>
#include <ctime>
#include <iterator>
#include <sstream>
#include <utility>

#include "bridge/protocol/printable.hpp"
#include "rdma/network.hpp"

namespace rnbd {
namespace {

/// "UNTIL WHO SESSION", a line each.
std::string text_of(const std::vector<EvictedClient>& clients) {
  std::string text;
  for (const EvictedClient& each : clients) {
    text += std::to_string(each.until) + ' ' + each.who + ' ' + on_one_line(each.session) + '\n';
  }
  return text;
}

}  // namespace

std::string who_is(const User& user) {
  if (!user.name.empty()) return user.name;
  return user.peer.empty() ? "" : '@' + rtrs::normal_host(user.peer);
}

tl::expected<void, std::string> EvictedClients::keep(Keeper keeper, std::string_view list) {
  std::vector<EvictedClient> known;
  std::istringstream lines{std::string{list}};
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words{line};
    EvictedClient client;
    if (!(words >> client.until >> client.who)) return tl::unexpected(in_quotes(line));
    words.ignore(1);
    std::getline(words, client.session);
    known.push_back(std::move(client));
  }
  const std::lock_guard lock{mutex_};
  keeper_ = std::move(keeper);
  clients_ = std::move(known);
  return {};
}

tl::expected<void, std::string> EvictedClients::add(EvictedClient client) {
  const std::lock_guard one_at_a_time{saving_};
  std::vector<EvictedClient> next = all();
  std::erase_if(next, [&](const EvictedClient& each) { return each.who == client.who; });
  next.push_back(std::move(client));
  return save(std::move(next));
}

tl::expected<bool, std::string> EvictedClients::readmit(std::string_view who) {
  const std::lock_guard one_at_a_time{saving_};
  std::vector<EvictedClient> next = all();
  const auto meant = [&](const EvictedClient& each) { return who == "all" || each.who == who; };
  if (std::erase_if(next, meant) == 0) return false;
  if (auto saved = save(std::move(next)); !saved) return tl::unexpected(saved.error());
  return true;
}

/// It is so from now on, also if it cannot be kept.
tl::expected<void, std::string> EvictedClients::save(std::vector<EvictedClient> next) {
  const std::string text = text_of(next);
  {
    const std::lock_guard lock{mutex_};
    clients_ = std::move(next);
  }
  return keeper_.save ? keeper_.save(text) : tl::expected<void, std::string>{};
}

bool EvictedClients::contains(const User& user) const {
  const std::lock_guard lock{mutex_};
  if (clients_.empty()) return false;
  const std::string who = who_is(user);
  return std::ranges::any_of(
      clients_, [&](const EvictedClient& each) { return each.who == who && !is_over(each); });
}

std::vector<EvictedClient> EvictedClients::all() const {
  const std::lock_guard lock{mutex_};
  std::vector<EvictedClient> there;
  std::ranges::copy_if(clients_, std::back_inserter(there),
                       [&](const EvictedClient& each) { return !is_over(each); });
  return there;
}

/// With the lock held.
bool EvictedClients::is_over(const EvictedClient& client) const {
  if (client.until == 0) return false;
  return (keeper_.now ? keeper_.now() : std::time(nullptr)) >= client.until;
}

}  // namespace rnbd
