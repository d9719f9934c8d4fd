// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/key_list.hpp"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <array>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "bridge/ctl/output.hpp"
#include "bridge/ctl/whole_file.hpp"
#include "bridge/protocol/printable.hpp"
#include "rdma/transport/tls/inspect.hpp"
#include "rdma/transport/tls/key_files.hpp"
#include "rdma/transport/tls/psk_file.hpp"

namespace rnbd {
namespace {

namespace tls = rtrs::tls;
using Done = tl::expected<void, std::string>;

constexpr const char* kKeysDescription =
    "rnbd-ctl keys - show which keys and certificates there are, or take one away\n"
    "\n"
    "Of a FILE of shared keys it shows the names, and of a DIRECTORY the certificates and when\n"
    "they end. A fingerprint is the same where the key is the same; keys are never shown.\n"
    "--remove takes the key NAME out of FILE; a reload of the server ends its sessions.\n";
constexpr const char* kKeysExamples = R"(Examples:
  Has the client the key that the server has?
    rnbd-ctl keys /etc/rnbd/keys.psk

  host1 has its new key host1/2, and the old one goes:
    rnbd-ctl keys /etc/rnbd/keys.psk --remove host1
    rnbd-ctl /run/rnbd-server/control reload)";

/// A line of the list.
struct Shown {
  std::string name, user, fingerprint, ends;
  std::string warning;  ///< "ends in 12 days"; "" = none
};

std::string date_of(std::time_t when) {
  std::array<char, 32> text{};
  struct tm parts {};
  if (gmtime_r(&when, &parts) == nullptr) return "?";
  return {text.data(), std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts)};
}

tl::expected<std::vector<Shown>, std::string> shared_keys(const std::string& file) {
  const auto content = tls::read_key_file(file, tls::Kind::secret);
  if (!content) return tl::unexpected(content.error());
  const auto keys = tls::parse_psk(content->text());
  if (!keys) return tl::unexpected(file + ": " + keys.error());
  std::vector<Shown> all;
  for (const tls::PskKey& key : *keys) {
    all.push_back(
        {key.name, std::string{tls::identity_of(key.name)}, tls::fingerprint(key.secret), "", ""});
  }
  return all;
}

tl::expected<std::vector<Shown>, std::string> certificates(const std::string& directory) {
  std::vector<Shown> all;
  for (const char* const name :
       {tls::kCaCertificate, tls::kServerCertificate, tls::kClientCertificate}) {
    const std::string path = directory + '/' + name;
    if (!tls::is_there(path)) continue;
    const auto content = tls::read_key_file(path, tls::Kind::open);
    if (!content) return tl::unexpected(content.error());
    const auto facts = tls::look_at(content->text());
    if (!facts) return tl::unexpected(path + ": " + facts.error());
    all.push_back({name, facts->name, facts->fingerprint, date_of(facts->end),
                   tls::end_soon(facts->end, std::time(nullptr))});
  }
  if (all.empty()) {
    return tl::unexpected(directory + ": has no certificate; rnbd-ctl certgen makes them");
  }
  const std::string lists = directory + '/' + tls::kRevocations;
  if (!tls::is_there(lists)) return all;
  const auto content = tls::read_key_file(lists, tls::Kind::open);
  if (!content) return tl::unexpected(content.error());
  const auto facts = tls::look_at_lists(content->text());
  if (!facts) return tl::unexpected(lists + ": " + facts.error());
  all.push_back({tls::kRevocations, "(" + std::to_string(facts->withdrawn) + " withdrawn)", "-",
                 facts->next ? date_of(*facts->next) : "",
                 facts->next ? tls::list_ends_soon(*facts->next, std::time(nullptr)) : ""});
  return all;
}

void print(const std::vector<Shown>& all) {
  const auto column = [](std::string text, std::size_t width) {
    text.resize(std::max(text.size(), width), ' ');
    return text + ' ';
  };
  const auto line = [&](const std::string& key, const std::string& user,
                        const std::string& fingerprint, const std::string& ends) {
    say(column(key, 24) + column(user, 24) + column(fingerprint, 16) + ' ' + ends + '\n');
  };
  line("KEY", "USER", "FINGERPRINT", "ENDS");
  for (const Shown& key : all) {
    const std::string warning = key.warning.empty() ? "" : " (" + key.warning + ")";
    line(key.name, key.user, key.fingerprint, (key.ends.empty() ? "-" : key.ends) + warning);
  }
}

void print_json(const std::vector<Shown>& all) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Shown& key : all) {
    nlohmann::ordered_json one{
        {"key", key.name}, {"user", key.user}, {"fingerprint", key.fingerprint}};
    if (!key.ends.empty()) one["ends"] = key.ends;
    if (!key.warning.empty()) one["warning"] = key.warning;
    list.push_back(std::move(one));
  }
  using Json = nlohmann::ordered_json;
  const Json answer{{"keys", std::move(list)}};
  say(readable_json(answer.dump(-1, ' ', false, Json::error_handler_t::replace)) + "\n");
}

Done list_keys(const std::string& path, bool json) {
  std::error_code unknown;
  const bool is_directory = std::filesystem::is_directory(path, unknown);
  const auto all = is_directory ? certificates(path) : shared_keys(path);
  if (!all) return tl::unexpected(all.error());
  json ? print_json(*all) : print(*all);
  return {};
}

/// Everything but the line of this key, with comments and order as they were.
tls::Content without(std::string_view text, const std::string& name) {
  std::vector<char> kept;
  kept.reserve(text.size());  // or parts of keys would stay where it grew from
  while (!text.empty()) {
    const std::size_t size = std::min(text.find('\n'), text.size() - 1) + 1;
    const std::string_view line = text.substr(0, size);
    if (line.starts_with('#') || line.substr(0, line.rfind(':')) != name) {
      kept.insert(kept.end(), line.begin(), line.end());
    }
    text.remove_prefix(size);
  }
  return tls::Content{std::move(kept)};
}

Done remove_key(const std::string& file, const std::string& name) {
  const auto lock = lock_files_beside(file);
  if (!lock) return tl::unexpected(lock.error());
  const auto content = tls::read_key_file(file, tls::Kind::secret);
  if (!content) return tl::unexpected(content.error());
  const auto keys = tls::parse_psk(content->text());
  if (!keys) return tl::unexpected(file + ": " + keys.error());
  if (std::ranges::find(*keys, name, &tls::PskKey::name) == keys->end()) {
    return tl::unexpected(file + ": has no key '" + name + "'; rnbd-ctl keys " + file +
                          " shows which there are");
  }
  if (keys->size() == 1) {
    return tl::unexpected(file + ": '" + name +
                          "' is its only key, and without any the server would keep it; make "
                          "another one first (rnbd-ctl keygen)");
  }
  const tls::Content rest = without(content->text(), name);
  if (auto done = write_file(file, rest.text(), 0600); !done) return done;
  say("the key '" + name + "' is no longer in " + file +
      "; a reload of the server ends its sessions\n");
  return {};
}

}  // namespace

std::optional<EarlyExit> run_key_list(int argc, const char* const* argv, Done& done) {
  CLI::App app{kKeysDescription, "rnbd-ctl keys"};
  std::string path, name;
  bool json = false;
  app.add_option("PATH", path, "A file of shared keys, or a directory of certificates.");
  app.add_option("--remove", name, "Take this key out of the file.")->type_name("NAME");
  app.add_flag("--json", json, "Print JSON.");
  if (auto early = parse_arguments(app, kKeysExamples, "name one file or directory", argc, argv)) {
    return early;
  }
  if (path.empty()) return usage_error(app, "write rnbd-ctl keys FILE");
  done = name.empty() ? list_keys(path, json) : remove_key(path, name);
  return std::nullopt;
}

}  // namespace rnbd
