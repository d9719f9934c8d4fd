// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/kernel/mapping.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <sstream>
#include <utility>

#include "bridge/client/uri.hpp"

namespace rnbd {
namespace {

/// Options of a disk, which its neighbours in a session need not have.
constexpr std::array<std::string_view, 6> kOfDisk{
    "--access", "--uuid", "--discard", "--write-zeroes", "--dead-timeout", "--kernel-retry"};
/// Options of the process or its NBD clients.
constexpr std::array<std::string_view, 15> kOfProcess{"--listen",
                                                      "-l",
                                                      "--tls",
                                                      "--tls-psk",
                                                      "--tls-certificates",
                                                      "--tls-verify-peer",
                                                      "--metrics",
                                                      "--max-connections",
                                                      "--log-level",
                                                      "--pid-file",
                                                      "--ready-fd",
                                                      "--control",
                                                      "--kernel",
                                                      "--map-name",
                                                      "--disks"};
/// A key that lies beside the file of the mapping.
constexpr std::string_view kBesideFile = "credential:";
constexpr std::size_t kLongestHost = 60;  ///< the path of a socket has 107 bytes
constexpr int kDigestDigits = 8;

/// KEY="VALUE" or KEY=VALUE, in parts; the key is "" for comments and empty lines.
std::pair<std::string, std::string> assignment_in(const std::string& line) {
  const std::size_t equals = line.find('=');
  if (line.starts_with('#') || equals == std::string::npos) return {};
  std::string value = line.substr(equals + 1);
  if (value.size() >= 2 && value.front() == '"' && value.back() == '"') {
    value = value.substr(1, value.size() - 2);
  }
  return {line.substr(0, equals), value};
}

using Option = std::pair<std::string, std::string>;

/// --NAME VALUE and --NAME=VALUE are the same.
std::vector<Option> pairs_of(const std::vector<std::string>& words) {
  std::vector<Option> pairs;
  for (const std::string& word : words) {
    const std::size_t equals = word.starts_with("--") ? word.find('=') : std::string::npos;
    if (word.starts_with('-')) {
      pairs.emplace_back(word.substr(0, equals),
                         equals == std::string::npos ? "" : word.substr(equals + 1));
    } else if (!pairs.empty()) {
      pairs.back().second += (pairs.back().second.empty() ? "" : " ") + word;
    } else {
      pairs.emplace_back("", word);
    }
  }
  return pairs;
}

bool is_among(std::string_view option, std::span<const std::string_view> options) {
  return std::ranges::find(options, option) != options.end();
}

bool needs_process(const Option& option) {
  return is_among(option.first, kOfProcess) || option.second.starts_with(kBesideFile);
}

std::string server_of(const DeviceUri& uri) {
  std::string text = uri.tls ? "tls" : uri.transport == rtrs::TransportKind::tcp ? "tcp" : "rdma";
  text += " " + uri.user + "@" + uri.host + ":" + std::to_string(uri.port);
  std::vector<Option> options{uri.options.begin(), uri.options.end()};
  std::erase_if(options, [](const Option& option) { return option.first == "uuid"; });
  std::ranges::stable_sort(options);
  for (const auto& [key, value] : options) text += " " + key + "=" + value;
  return text;
}

/// FNV-1a, which is stable over versions and machines. A collision is found by session_text().
std::uint32_t digest_of(std::string_view text) {
  std::uint64_t digest = 0xcbf29ce484222325;
  for (const char c : text) digest = (digest ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return static_cast<std::uint32_t>(digest ^ (digest >> 32U));
}

std::string hexadecimal(std::uint32_t number) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string text;
  for (int digit = kDigestDigits - 1; digit >= 0; --digit)
    text += kHex[(number >> (4U * static_cast<unsigned>(digit))) & 15U];
  return text;
}

/// Characters that the name of a unit and of a file may have.
std::string plain(std::string host) {
  host.resize(std::min(host.size(), kLongestHost));
  for (char& c : host) {
    const bool fits = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                      c == '.' || c == '-' || c == ':';
    if (!fits) c = '_';
  }
  return host;
}

}  // namespace

std::string file_of(const Mapping& mapping) {
  std::string options;
  for (const std::string& option : mapping.options)
    options += (options.empty() ? "" : " ") + option;
  const std::string unit =
      mapping.bridge.empty() ? "rnbd-map@" + mapping.name : "rnbd-maps@" + mapping.bridge;
  return "# Of " + unit + ".service; `rnbd-ctl map` wrote it, `rnbd-ctl unmap " + mapping.name +
         "` removes it.\n" + (mapping.bridge.empty() ? "" : "BRIDGE=\"" + mapping.bridge + "\"\n") +
         "URI=\"" + mapping.uri + "\"\nKERNEL=\"" + mapping.kernel + "\"\nOPTIONS=\"" + options +
         "\"\n";
}

tl::expected<Mapping, std::string> read_mapping(const std::string& name, const std::string& text) {
  Mapping mapping{.name = name, .uri = {}};
  std::istringstream lines{text};
  for (std::string line; std::getline(lines, line);) {
    const auto [key, value] = assignment_in(line);
    if (key == "BRIDGE") mapping.bridge = value;
    if (key == "URI") mapping.uri = value;
    if (key == "KERNEL") mapping.kernel = value;
    std::istringstream words{key == "OPTIONS" ? value : ""};
    for (std::string word; words >> word;) mapping.options.push_back(word);
  }
  if (!mapping.uri.empty()) return mapping;
  return tl::unexpected("the file of the mapping " + name + " has no line URI=");
}

std::string session_text(const Mapping& mapping) {
  const auto uri = parse_device_uri(mapping.uri);
  if (!uri || !uri->several.empty()) return "";
  const auto beside_file = [](const Option& option) {
    return option.second.starts_with(kBesideFile);
  };
  std::vector<Option> options = pairs_of(mapping.options);
  if (std::ranges::any_of(options, needs_process) || std::ranges::any_of(uri->options, beside_file))
    return "";
  std::erase_if(options, [](const Option& option) { return is_among(option.first, kOfDisk); });
  // The order of different options means nothing, that of paths does.
  std::ranges::stable_sort(options, {}, &Option::first);
  std::string text = server_of(*uri);
  for (const auto& [name, value] : options) text += "\n" + name + " " + value;
  return text;
}

std::string bridge_key(const Mapping& mapping) {
  const std::string text = session_text(mapping);
  if (text.empty()) return "";
  const auto uri = parse_device_uri(mapping.uri);
  return plain(uri->host) + ":" + std::to_string(uri->port) + "-" + hexadecimal(digest_of(text));
}

bool is_bridge_key(std::string_view text) { return text.find(':') != std::string_view::npos; }

}  // namespace rnbd
