// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/server/server_place.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

#include "rdma/owned_fd.hpp"

namespace rnbd {
namespace {

using Words = std::set<std::string>;

constexpr const char* kAny = "any";
constexpr const char* kMachine = "machine";
constexpr const char* kCard = "card";
constexpr const char* kAddress = "address";

std::string word_in(const std::string& path) {
  std::ifstream file{path};
  std::string word;
  file >> word;
  return word;
}

/// Hardware addresses that were made up at this boot, or copied from another card, are no marks.
/// Source: Linux, Documentation/ABI/testing/sysfs-class-net, addr_assign_type.
Words cards(const std::string& folder) {
  Words found;
  std::error_code failure;
  for (const auto& each : std::filesystem::directory_iterator{folder, failure}) {
    const std::string card = each.path().string();
    if (!std::filesystem::exists(card + "/device", failure)) continue;
    if (word_in(card + "/addr_assign_type") != "0") continue;
    const std::string address = word_in(card + "/address");
    if (address.find_first_not_of("0:") != std::string::npos) found.insert(address);
  }
  return found;
}

std::string list_of(const Words& words) {
  std::string list;
  for (const std::string& word : words) list += (list.empty() ? "" : ", ") + word;
  return list;
}

bool are_apart(const Words& one, const Words& other) {
  if (one.empty() || other.empty()) return false;
  return std::ranges::none_of(one, [&](const auto& word) { return other.contains(word); });
}

std::string text_of(const ServerPlace& place) {
  std::string text;
  const auto add = [&](const char* what, const std::string& word) {
    text += std::string{what} + ' ' + word + '\n';
  };
  if (!place.machine.empty()) add(kMachine, place.machine);
  for (const std::string& card : place.cards) add(kCard, card);
  for (const std::string& address : place.addresses) add(kAddress, address);
  return text;
}

ServerPlace place_in(const std::string& text) {
  ServerPlace place;
  std::istringstream words{text};
  std::string what, word;
  while (words >> what >> word) {
    if (what == kMachine) place.machine = word;
    if (what == kCard) place.cards.insert(word);
    if (what == kAddress) place.addresses.insert(word);
  }
  return place;
}

}  // namespace

ServerPlace this_place(std::set<std::string> addresses, const std::string& root) {
  return {word_in(root + "/etc/machine-id"), cards(root + "/sys/class/net"), std::move(addresses)};
}

std::string change_of_place(const ServerPlace& was, const ServerPlace& is) {
  if (!was.machine.empty() && !is.machine.empty() && was.machine != is.machine) {
    return "its /etc/machine-id was " + was.machine + " and is " + is.machine;
  }
  if (are_apart(was.cards, is.cards)) {
    return "its network cards were " + list_of(was.cards) + " and are " + list_of(is.cards);
  }
  if (are_apart(was.addresses, is.addresses)) {
    return "it listened on " + list_of(was.addresses) + " and listens on " + list_of(is.addresses);
  }
  return "";
}

tl::expected<std::string, std::string> PlaceFile::change(const ServerPlace& now) {
  anywhere_ = false;
  std::ifstream file{path_};
  if (!file) {
    if (errno == ENOENT) return "";
    return tl::unexpected(path_ + ": " + std::strerror(errno));
  }
  std::ostringstream text;
  text << file.rdbuf();
  std::istringstream words{text.str()};
  std::string first;
  words >> first;
  anywhere_ = first == kAny;
  if (anywhere_) return "";
  was_ = place_in(text.str());
  return change_of_place(was_, now);
}

PlaceFile::Saved PlaceFile::save(const ServerPlace& now,
                                 const std::function<Saved()>& before) const {
  ServerPlace known = now;
  const bool same = change_of_place(was_, now).empty();
  if (known.machine.empty()) known.machine = was_.machine;
  if (same || known.cards.empty()) known.cards.insert(was_.cards.begin(), was_.cards.end());
  if (same || known.addresses.empty()) {
    known.addresses.insert(was_.addresses.begin(), was_.addresses.end());
  }
  if (anywhere_ || known == was_) return {};
  const std::string draft = path_ + ".new";
  const auto failed = [&] { return tl::unexpected(draft + ": " + std::strerror(errno)); };
  const rtrs::OwnedFd file{
      ::open(draft.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600)};
  if (!file) return failed();
  const std::string text = text_of(known);
  const ssize_t written = ::write(file.get(), text.data(), text.size());
  if (written >= 0 && static_cast<std::size_t>(written) != text.size()) errno = ENOSPC;
  if (written != static_cast<ssize_t>(text.size()) || ::fsync(file.get()) < 0) return failed();
  if (before) {
    if (auto done = before(); !done) return done;
  }
  if (std::rename(draft.c_str(), path_.c_str()) != 0) return failed();
  return {};
}

}  // namespace rnbd
