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

/// An address without a port, in the one way to write it.
std::string normal_address(std::string_view text) {
  if (text.starts_with('@')) text.remove_prefix(1);
  const bool bare =
      text.starts_with('[') ? text.ends_with(']') : std::ranges::count(text, ':') != 1;
  return '@' + rtrs::normal_host(std::string{text} + (bare ? ":0" : ""));
}

/// The first kind of name that fits. A session may have had several clients.
std::vector<EvictedClient> meant_by(std::string_view name, const std::vector<EvictedClient>& all) {
  if (name == "all") return all;
  if (name.empty()) return {};
  const std::string address = normal_address(name);
  std::vector<EvictedClient> meant;
  const auto take = [&](const std::string& wanted, std::string EvictedClient::*part) {
    if (!meant.empty()) return;
    std::ranges::copy_if(all, std::back_inserter(meant),
                         [&](const EvictedClient& each) { return each.*part == wanted; });
  };
  take(std::string{name}, &EvictedClient::who);
  take(std::string{name}, &EvictedClient::session);
  take(address, &EvictedClient::who);
  return meant;
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

tl::expected<std::vector<EvictedClient>, std::string> EvictedClients::readmit(
    std::string_view name) {
  const std::lock_guard one_at_a_time{saving_};
  std::vector<EvictedClient> next = all();
  std::vector<EvictedClient> meant = meant_by(name, next);
  if (meant.empty()) return meant;
  std::erase_if(next, [&](const EvictedClient& each) {
    return std::ranges::find(meant, each) != meant.end();
  });
  if (auto saved = save(std::move(next)); !saved) return tl::unexpected(saved.error());
  return meant;
}

/// The list is in force from now on, also if it cannot be kept.
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
